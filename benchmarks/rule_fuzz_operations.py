"""The operations of `benchmarks.rule_fuzz`: each takes a tensor of any shape, along dimensions drawn at random.

An operation that does not take the shape raises what torch raises. Weights may need gradients, since rules answer for
every input; some operations combine a tensor with an earlier one of their chain.
"""

# mypy: disable-error-code="no-any-return,operator,arg-type,misc,return-value"
# Half of the functions here are untyped in torch.

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

T = TypeVar("T")


class Chance:
    """All that is random in a chain."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._generator = torch.Generator().manual_seed(seed)
        self.earlier: list[Tensor] = []
        """Tensors of the chain that came before."""

    def choice(self, values: Iterable[T]) -> T:
        return self._random.choice(list(values))

    def numbers(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator, dtype=torch.float64)

    def weights(self, *shape: int) -> Tensor:
        """Return numbers that need a gradient or not."""
        return self.numbers(*shape).requires_grad_(self.choice([True, False]))

    def dim(self, x: Tensor) -> int:
        """Draw a dimension, counted from either end."""
        return self.choice(range(-x.dim(), x.dim()))

    def dims(self, x: Tensor) -> tuple[int, ...]:
        """Draw some dimensions, in any order."""
        order = self._random.sample(range(x.dim()), x.dim())
        return tuple(order[: self.choice(range(1, x.dim() + 1))])

    def order(self, x: Tensor) -> tuple[int, ...]:
        return tuple(self._random.sample(range(x.dim()), x.dim()))

    def indices(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self._generator)

    def mask(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator) < 0.5

    def like(self, x: Tensor) -> Tensor:
        """Return an earlier tensor of this shape, or weights."""
        same = [t for t in self.earlier if t.shape == x.shape and t.dtype == x.dtype]
        return self.choice([*same, x.sin(), self.weights(*x.shape)])

    def broadcast(self, x: Tensor) -> Tensor:
        """Return weights of a shape that is broadcast to x."""
        shape = [size if self.choice([True, False]) else 1 for size in x.shape]
        return self.weights(*shape[self.choice(range(x.dim() + 1)) :])

    def shape_of(self, x: Tensor) -> list[int]:
        """Draw another shape with as many entries."""
        left, shape = x.numel(), []
        for _ in range(self.choice(range(1, 5))):
            size = self.choice([s for s in range(1, left + 1) if left % s == 0])
            shape.append(size)
            left //= size
        shape.insert(self.choice(range(len(shape) + 1)), left)
        return shape


Operation = Callable[[Chance, Tensor], Tensor]


class Doubled(torch.autograd.Function):
    """A user's own function."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(_: Any, *gradients: Tensor) -> Any:
        return 2 * gradients[0]


def _unary(c: Chance, x: Tensor) -> Tensor:
    names = (
        "tanh",
        "sin",
        "cos",
        "exp",
        "sigmoid",
        "relu",
        "erf",
        "neg",
        "abs",
        "square",
        "atan",
        "log1p_",
        "softsign",
        "rsqrt_",
        "sinh",
    )
    name = c.choice(names)
    if name.endswith("_"):
        return getattr(1 + x.abs(), name[:-1])()
    return F.softsign(x) if name == "softsign" else getattr(x, name)()


def _activation(c: Chance, x: Tensor) -> Tensor:
    functions = (
        F.gelu,
        F.silu,
        F.elu,
        F.leaky_relu,
        F.softplus,
        F.hardtanh,
        F.mish,
        F.hardswish,
        F.celu,
        F.logsigmoid,
    )
    return c.choice(functions)(x)


def _binary(c: Chance, x: Tensor) -> Tensor:
    y = c.choice([c.like(x), c.broadcast(x)])
    functions = (
        torch.add,
        torch.sub,
        torch.mul,
        torch.maximum,
        torch.minimum,
        torch.atan2,
        torch.hypot,
        torch.fmax,
    )
    pair = c.choice([(x, y), (y, x)])
    return c.choice(functions)(*pair)


def _ternary(c: Chance, x: Tensor) -> Tensor:
    y, z = c.like(x), c.broadcast(x)
    return c.choice([torch.addcmul, torch.lerp])(x, y, z)


def _outer_sum(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x) % x.dim()
    return x.unsqueeze(dim) + x.unsqueeze(dim + 1)


def _cat(c: Chance, x: Tensor) -> Tensor:
    parts = [x, c.like(x), c.like(x)]
    return torch.cat([parts[i] for i in c.order(c.numbers(3))[: c.choice([1, 2, 3])]], c.dim(x))


def _slice(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    start = c.choice(range(x.shape[dim]))
    length = c.choice(range(1, x.shape[dim] - start + 1))
    return x.narrow(dim, start, length)


def _strided_slice(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x) % x.dim()
    part = slice(c.choice([None, 0, 1, -2]), c.choice([None, -1, 4]), c.choice([1, 2, 3]))
    return x[(slice(None),) * dim + (part,)]


def _halves(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    parts = c.choice([x.chunk(2, dim), x.split(c.choice([1, 2, 3]), dim)])
    return c.choice([c.choice(parts), torch.cat([part.tanh() for part in parts], dim)])


def _unequal_split(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    first = c.choice(range(1, x.shape[dim]))
    return c.choice(x.split([first, x.shape[dim] - first], dim))


def _index(c: Chance, x: Tensor) -> Tensor:
    places: list[Any] = [slice(None)] * x.dim()
    count = c.choice([1, 1, 2, 3])
    for dim in c.dims(x)[:2]:
        size = x.shape[dim]
        ids = c.choice(
            [torch.arange(size), c.indices(size, count), c.indices(size, size), c.indices(size, 2, 1)]
        )
        places[dim] = c.choice([ids, ids, c.choice(range(size))])
    return x[tuple(places)]


def _one_per_row(c: Chance, x: Tensor) -> Tensor:
    rows = c.choice([len(x), max(1, len(x) - 1)])
    return x[torch.arange(rows), c.indices(x.shape[1], rows)]


def _gather(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    shape = list(x.shape)
    shape[dim] = c.choice([1, 2, shape[dim]])
    return x.gather(dim, c.indices(x.shape[dim], *shape))


def _gather_fewer(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    shape = [c.choice(range(1, size + 1)) for size in x.shape]
    return x.gather(dim, c.indices(x.shape[dim], *shape))


def _scatter(c: Chance, x: Tensor) -> Tensor:
    dim, source = c.dim(x), c.like(x)
    ids = c.indices(x.shape[dim], *x.shape)
    return c.choice([x.scatter_add(dim, ids, source), x.scatter(dim, ids.sort(dim)[0], 0.5)])


def _scatter_into(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    shape = list(x.shape)
    shape[dim] = c.choice([1, 2, 3, 4])
    return c.weights(*shape).scatter_add(dim, c.indices(shape[dim], *x.shape), x)


def _index_add(c: Chance, x: Tensor) -> Tensor:
    dim, source = c.dim(x), c.like(x)
    ids = torch.randperm(x.shape[dim], generator=c._generator)
    return c.choice([x.index_add(dim, ids, source), x.index_copy(dim, ids, source)])


def _index_add_into(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    shape = list(x.shape)
    shape[dim] = c.choice([1, 2, 3, 4, 6])
    return c.weights(*shape).index_add(dim, c.indices(shape[dim], x.shape[dim]), x)


def _index_fill(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    return x.index_fill(dim, c.indices(x.shape[dim], 1), c.weights())


def _index_put(c: Chance, x: Tensor) -> Tensor:
    ids = c.indices(len(x), 2)
    return x.index_put((ids,), c.weights(2, *x.shape[1:]))


def _masked_fill(c: Chance, x: Tensor) -> Tensor:
    return x.masked_fill(c.mask(*x.shape), c.weights())


def _masked_select(c: Chance, x: Tensor) -> Tensor:
    return c.choice([x[c.mask(*x.shape)], x.masked_select(c.mask(*x.shape)), x[c.mask(len(x))]])


def _reduce(c: Chance, x: Tensor) -> Tensor:
    dims, keep = c.dims(x), c.choice([True, False])
    functions = (torch.sum, torch.mean, torch.amax, torch.amin, torch.logsumexp, torch.nansum)
    return c.choice(functions)(x, dim=dims, keepdim=keep)


def _spread(c: Chance, x: Tensor) -> Tensor:
    dims, keep = c.dims(x), c.choice([True, False])
    functions = (torch.std, torch.var, torch.linalg.vector_norm)
    return c.choice(functions)(x, dim=dims, keepdim=keep)


def _pick(c: Chance, x: Tensor) -> Tensor:
    dim, keep = c.dim(x), c.choice([True, False])
    functions = (torch.max, torch.min, torch.median, torch.mode)
    return c.choice(functions)(x, dim=dim, keepdim=keep)[0]


def _scan(c: Chance, x: Tensor) -> Tensor:
    return c.choice([torch.cumsum, torch.cumprod, torch.logcumsumexp])(x, c.dim(x))


def _scan_extreme(c: Chance, x: Tensor) -> Tensor:
    return c.choice([torch.cummax, torch.cummin])(x, c.dim(x))[0]


def _softmax(c: Chance, x: Tensor) -> Tensor:
    return c.choice([torch.softmax, torch.log_softmax, F.softmin])(x, dim=c.dim(x))


def _whole(c: Chance, x: Tensor) -> Tensor:
    return c.choice([x / x.norm(), x - x.mean(), x * x.max(), x / x.sum().exp()])


def _linear(c: Chance, x: Tensor) -> Tensor:
    out = c.choice([1, 2, 3, 4])
    return F.linear(x, c.weights(out, x.shape[-1]), c.choice([None, c.weights(out)]))


def _matmul(c: Chance, x: Tensor) -> Tensor:
    return c.choice(
        [x @ c.weights(x.shape[-1], c.choice([2, 3])), c.weights(c.choice([2, 3]), x.shape[-2]) @ x]
    )


def _similarities(c: Chance, x: Tensor) -> Tensor:
    return c.choice([x @ x.mT, x.mT @ c.like(x), c.like(x) @ x.mT])


def _vector(c: Chance, x: Tensor) -> Tensor:
    return c.choice([x @ c.weights(x.shape[-1]), c.weights(x.shape[0]) @ x])


def _bmm(c: Chance, x: Tensor) -> Tensor:
    y = c.weights(x.shape[0], x.shape[2], c.choice([2, 3]))
    return c.choice([torch.bmm(x, y), torch.baddbmm(c.weights(1, y.shape[2]), x, y)])


def _addmm(c: Chance, x: Tensor) -> Tensor:
    y = c.weights(x.shape[1], c.choice([2, 3]))
    added = c.choice([c.weights(y.shape[1]), c.weights(len(x), 1), c.weights(len(x), y.shape[1])])
    return torch.addmm(added, x, y)


def _einsum(c: Chance, x: Tensor) -> Tensor:
    letters = "abcdef"[: x.dim()]
    summed = c.choice(letters)
    out = c.order(x)
    kept = "".join(letters[dim] for dim in out if letters[dim] != summed)
    return torch.einsum(f"{letters},{summed}z->{kept}z", x, c.weights(x.shape[letters.index(summed)], 2))


def _einsum_pair(c: Chance, x: Tensor) -> Tensor:
    letters = "abcdef"[: x.dim()]
    dim = c.choice(range(x.dim()))
    other = letters.replace(letters[dim], "z")
    return torch.einsum(f"{letters},{other}->{letters}z", x, c.like(x)) if x.dim() < 4 else x.sin()


def _attention(c: Chance, x: Tensor) -> Tensor:
    mask = c.choice([None, c.weights(x.shape[-2], x.shape[-2])])
    return F.scaled_dot_product_attention(x, c.like(x), c.like(x), attn_mask=mask)


def _conv1d(c: Chance, x: Tensor) -> Tensor:
    return F.conv1d(x, c.weights(c.choice([2, 3]), x.shape[-2], c.choice([1, 2])), padding=c.choice([0, 1]))


def _conv2d(c: Chance, x: Tensor) -> Tensor:
    return F.conv2d(
        x, c.weights(c.choice([2, 4]), x.shape[-3], 2, 1), c.choice([None]), padding=c.choice([0, 1])
    )


def _depthwise(c: Chance, x: Tensor) -> Tensor:
    return F.conv2d(x, c.weights(x.shape[-3], 1, 1, 2), padding=1, groups=x.shape[-3])


def _transposed_conv(c: Chance, x: Tensor) -> Tensor:
    return F.conv_transpose1d(x, c.weights(x.shape[-2], 2, 2))


def _layer_norm(c: Chance, x: Tensor) -> Tensor:
    shape = list(x.shape[c.choice(range(x.dim())) :])
    return c.choice([F.layer_norm, F.rms_norm])(x, shape, c.weights(*shape))


def _group_norm(c: Chance, x: Tensor) -> Tensor:
    channels = x.shape[1]
    groups = c.choice([g for g in range(1, channels + 1) if channels % g == 0])
    return F.group_norm(x, groups, c.weights(channels), c.weights(channels))


def _instance_norm(_: Chance, x: Tensor) -> Tensor:
    return F.instance_norm(x)


def _batch_norm(c: Chance, x: Tensor) -> Tensor:
    channels, training = x.shape[1], c.choice([True, False])
    mean, variance = c.numbers(channels), c.numbers(channels).square() + 1
    return F.batch_norm(x, mean, variance, c.weights(channels), c.weights(channels), training)


def _normalize(c: Chance, x: Tensor) -> Tensor:
    return F.normalize(x, dim=c.dim(x))


def _weight_norm(c: Chance, x: Tensor) -> Tensor:
    return torch._weight_norm(x, c.weights(*[len(x), *[1] * (x.dim() - 1)]), 0)


def _pool(c: Chance, x: Tensor) -> Tensor:
    functions = (F.avg_pool2d, F.max_pool2d, F.avg_pool1d, F.max_pool1d, F.avg_pool3d, F.max_pool3d)
    return c.choice(functions)(x, c.choice([1, 2]), stride=1)


def _adaptive_pool(c: Chance, x: Tensor) -> Tensor:
    functions = (F.adaptive_avg_pool2d, F.adaptive_max_pool2d, F.adaptive_avg_pool1d, F.adaptive_max_pool1d)
    return c.choice((*functions, F.adaptive_avg_pool3d))(x, c.choice([1, 2, 3]))


def _lp_pool(c: Chance, x: Tensor) -> Tensor:
    return c.choice([F.lp_pool1d, F.lp_pool2d])(x.abs() + 1, 2, 2, stride=1)


def _interpolate(c: Chance, x: Tensor) -> Tensor:
    return F.interpolate(
        x, scale_factor=2, mode=c.choice(["nearest", "linear", "bilinear", "bicubic", "nearest-exact"])
    )


def _pad(c: Chance, x: Tensor) -> Tensor:
    amounts = [c.choice([0, 1, 2]) for _ in range(2 * c.choice(range(1, x.dim() + 1)))]
    return F.pad(x, amounts, value=0.5)


def _reflect(c: Chance, x: Tensor) -> Tensor:
    dims = c.choice([1, 2, 3])
    return F.pad(x, [1, 1] * dims, mode=c.choice(["reflect", "replicate", "circular"]))


def _im2col(c: Chance, x: Tensor) -> Tensor:
    return F.unfold(x, c.choice([1, 2, (1, 2), (2, 1)]), padding=c.choice([0, 1]))


def _col2im(c: Chance, x: Tensor) -> Tensor:
    places = x.shape[-1]
    height = c.choice([h for h in range(1, places + 1) if places % h == 0])
    kernel = kh, kw = c.choice([(1, 1), (1, 2), (2, 1), (2, 2)])
    return F.fold(x, (height + kh - 1, places // height + kw - 1), kernel)


def _grid_sample(c: Chance, x: Tensor) -> Tensor:
    return F.grid_sample(x, c.weights(len(x), 2, 3, 2).tanh(), align_corners=False)


def _bilinear(c: Chance, x: Tensor) -> Tensor:
    return F.bilinear(x, c.like(x), c.weights(2, x.shape[-1], x.shape[-1]))


def _fft(c: Chance, x: Tensor) -> Tensor:
    return c.choice([torch.fft.rfft(x, dim=c.dim(x)).abs(), torch.fft.fft(x, dim=c.dim(x)).real])


def _fft_back(c: Chance, x: Tensor) -> Tensor:
    return c.choice([torch.fft.irfft(torch.fft.rfft(x, dim=c.dim(x)), dim=c.dim(x)), torch.fft.fft2(x).imag])


def _complex_pairs(c: Chance, x: Tensor) -> Tensor:
    return c.choice(
        [torch.view_as_real(torch.fft.fft(x, dim=c.dim(x))), torch.view_as_complex(x.contiguous()).abs()]
    )


def _cell(c: Chance, x: Tensor) -> Tensor:
    kind = c.choice([nn.GRUCell, nn.RNNCell, nn.LSTMCell])
    result = kind(x.shape[-1], 3).double()(x)
    return result[0] if isinstance(result, tuple) else result


def _rnn(c: Chance, x: Tensor) -> Tensor:
    kind, first = c.choice([nn.GRU, nn.RNN, nn.LSTM]), c.choice([True, False])
    return kind(x.shape[-1], 2, batch_first=first).double()(x)[0]


def _multi_head(c: Chance, x: Tensor) -> Tensor:
    return nn.MultiheadAttention(x.shape[-1], 1, batch_first=c.choice([True, False])).double()(x, x, x)[0]


def _embedding(c: Chance, x: Tensor) -> Tensor:
    return x + F.embedding(c.indices(5, *x.shape[:-1]), c.weights(5, x.shape[-1]))


def _embedding_bag(c: Chance, x: Tensor) -> Tensor:
    return F.embedding_bag(c.indices(5, *x.shape), c.weights(5, 3), mode="sum", per_sample_weights=x)


def _chosen_rows(c: Chance, x: Tensor) -> Tensor:
    return F.embedding(c.indices(len(x), c.choice([2, 3, len(x)])), x)


def _cross_entropy(c: Chance, x: Tensor) -> Tensor:
    shape = [len(x), *x.shape[2:]]
    return F.cross_entropy(x, c.indices(x.shape[1], *shape), reduction=c.choice(["none", "none", "mean"]))


def _losses(c: Chance, x: Tensor) -> Tensor:
    functions = (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss)
    return c.choice(functions)(x, c.like(x), reduction=c.choice(["none", "none", "sum"]))


def _probabilities(c: Chance, x: Tensor) -> Tensor:
    target = c.mask(*x.shape).double()
    functions = (F.binary_cross_entropy_with_logits, F.soft_margin_loss, F.kl_div)
    return c.choice(functions)(x, target, reduction="none")


def _distances(c: Chance, x: Tensor) -> Tensor:
    return c.choice([torch.cdist(x, x + 1), F.pairwise_distance(x, c.like(x) + 2), torch.pdist(x)])


def _cosine(c: Chance, x: Tensor) -> Tensor:
    return F.cosine_similarity(x, c.like(x), dim=c.dim(x))


def _in_place(c: Chance, x: Tensor) -> Tensor:
    y = x.clone()
    dim = c.dim(x)
    y.select(dim, c.choice(range(x.shape[dim]))).mul_(2)
    return y


def _assigned(c: Chance, x: Tensor) -> Tensor:
    y, dim = x.clone(), c.dim(x)
    y.narrow(dim, 0, 1).copy_(c.choice([c.weights(1), x.narrow(dim, 0, 1).sin()]))
    return y


def _in_place_whole(c: Chance, x: Tensor) -> Tensor:
    return (x * 1.0).add_(c.broadcast(x)).relu_()


def _quantile(c: Chance, x: Tensor) -> Tensor:
    return c.choice(
        [
            x.quantile(0.5, c.dim(x)),
            x.diff(dim=c.dim(x)),
            x.renorm(2, 0, 1.0),
            torch.trapezoid(x, dim=c.dim(x)),
        ]
    )


def _triangular(c: Chance, x: Tensor) -> Tensor:
    return c.choice([x.tril(), x.triu(), torch.tril(x, -1)])


def _diagonal(c: Chance, x: Tensor) -> Tensor:
    return c.choice([x.diagonal(dim1=c.dim(x), dim2=c.dim(x)), torch.diag_embed(x)])


def _repeat(c: Chance, x: Tensor) -> Tensor:
    times = [c.choice([1, 1, 2, 3]) for _ in range(x.dim() + c.choice([0, 0, 1]))]
    return x.repeat(*times)


def _expand(c: Chance, x: Tensor) -> Tensor:
    sizes = [c.choice([2, 3]) if size == 1 else size for size in x.shape]
    return x.expand(*c.choice([[], [2], [3]]), *sizes)


def _unbind(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    parts = x.unbind(dim)
    return c.choice([c.choice(parts), torch.stack(parts[::-1], dim), torch.stack(parts, c.dim(x))])


def _stack(c: Chance, x: Tensor) -> Tensor:
    return torch.stack([x, c.like(x)], c.choice(range(-x.dim() - 1, x.dim() + 1)))


def _flatten(c: Chance, x: Tensor) -> Tensor:
    first = c.choice(range(x.dim()))
    return x.flatten(first, c.choice(range(first, x.dim())))


def _unflatten(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    return x.unflatten(dim, (c.choice([s for s in range(1, x.shape[dim] + 1) if x.shape[dim] % s == 0]), -1))


def _strided(c: Chance, x: Tensor) -> Tensor:
    rows = c.choice([2, 3])
    return x.contiguous().as_strided((rows, x.numel() // rows), (1, c.choice([1, rows])))


def _roll(c: Chance, x: Tensor) -> Tensor:
    return c.choice([x.roll(1, c.dim(x)), x.roll(1), x.roll((1, 2), (0, c.dim(x)))])


def _topk(c: Chance, x: Tensor) -> Tensor:
    dim = c.dim(x)
    return x.topk(c.choice(range(1, x.shape[dim] + 1)), dim)[0]


def _kthvalue(c: Chance, x: Tensor) -> Tensor:
    return x.kthvalue(1, c.dim(x), keepdim=c.choice([True, False]))[0]


def _glu(c: Chance, x: Tensor) -> Tensor:
    return F.glu(x, c.dim(x))


def _prelu(c: Chance, x: Tensor) -> Tensor:
    return F.prelu(x, c.weights(c.choice([1, x.shape[1]])))


def _experts(c: Chance, x: Tensor) -> Tensor:
    rows = c.mask(len(x)).nonzero()[:, 0]
    return x.index_add(0, rows, x[rows] * 2)


OPERATIONS: dict[str, Operation] = {
    "unary": _unary,
    "activation": _activation,
    "binary": _binary,
    "ternary": _ternary,
    "outer sum": _outer_sum,
    "where": lambda c, x: torch.where(c.mask(*x.shape), x, c.choice([c.like(x), c.broadcast(x)])),
    "clamp": lambda c, x: c.choice([x.clamp(-1, 1), x.clamp_min(0), torch.nan_to_num(x)]),
    "power": lambda c, x: (1 + x.abs()).pow(c.choice([0.5, 2, 3])),
    "dropout": lambda _, x: F.dropout(x, 0.3),
    "dropout of channels": lambda c, x: c.choice([F.dropout1d, F.dropout2d])(x, 0.3),
    "cast": lambda _, x: x.float().double(),
    "clone": lambda _, x: x.clone(),
    "contiguous": lambda _, x: x.mT.contiguous(),
    "own function": lambda _, x: Doubled.apply(x),
    "reshape": lambda c, x: x.reshape(c.shape_of(x)),
    "flatten": _flatten,
    "unflatten": _unflatten,
    "transpose": lambda c, x: x.transpose(c.dim(x), c.dim(x)),
    "t": lambda _, x: x.t(),
    "permute": lambda c, x: x.permute(c.order(x)),
    "movedim": lambda c, x: x.movedim(c.dim(x), c.dim(x)),
    "unsqueeze": lambda c, x: x.unsqueeze(c.choice(range(-x.dim() - 1, x.dim() + 1))),
    "squeeze": lambda c, x: c.choice([x.squeeze(), x.squeeze(c.dim(x))]),
    "expand": _expand,
    "repeat": _repeat,
    "repeat_interleave": lambda c, x: x.repeat_interleave(2, c.dim(x)),
    "tile": lambda _, x: x.tile(2),
    "cat": _cat,
    "stack": _stack,
    "split and chunk": _halves,
    "unequal split": _unequal_split,
    "unbind": _unbind,
    "select": lambda c, x: x.select(d := c.dim(x), c.choice(range(x.shape[d]))),
    "slice": _slice,
    "strided slice": _strided_slice,
    "as_strided": _strided,
    "windows": lambda c, x: x.unfold(c.dim(x), c.choice([1, 2]), c.choice([1, 2])),
    "diagonal": _diagonal,
    "triangular": _triangular,
    "flip": lambda c, x: x.flip(c.dims(x)),
    "roll": _roll,
    "pad": _pad,
    "reflect": _reflect,
    "index": _index,
    "one per row": _one_per_row,
    "index_select": lambda c, x: x.index_select(
        d := c.dim(x), c.indices(x.shape[d], c.choice([1, 2, x.shape[d]]))
    ),
    "index_fill": _index_fill,
    "index_put": _index_put,
    "index_add": _index_add,
    "index_add into": _index_add_into,
    "gather": _gather,
    "gather fewer": _gather_fewer,
    "scatter": _scatter,
    "scatter into": _scatter_into,
    "masked_fill": _masked_fill,
    "masked_select": _masked_select,
    "experts": _experts,
    "embedding": _embedding,
    "embedding_bag": _embedding_bag,
    "rows of a table": _chosen_rows,
    "sort": lambda c, x: x.sort(c.dim(x))[0],
    "topk": _topk,
    "kthvalue": _kthvalue,
    "reduce": _reduce,
    "spread": _spread,
    "pick": _pick,
    "prod": lambda c, x: x.prod(c.dim(x), keepdim=c.choice([True, False])),
    "scan": _scan,
    "scan extreme": _scan_extreme,
    "quantile, diff": _quantile,
    "whole": _whole,
    "softmax": _softmax,
    "layer_norm": _layer_norm,
    "group_norm": _group_norm,
    "instance_norm": _instance_norm,
    "batch_norm": _batch_norm,
    "normalize": _normalize,
    "weight_norm": _weight_norm,
    "local response norm": lambda _, x: F.local_response_norm(x, 2),
    "glu": _glu,
    "prelu": _prelu,
    "linear": _linear,
    "bilinear": _bilinear,
    "matmul": _matmul,
    "matrix and vector": _vector,
    "similarities": _similarities,
    "bmm": _bmm,
    "addmm": _addmm,
    "einsum": _einsum,
    "einsum of two": _einsum_pair,
    "attention": _attention,
    "multi-head attention": _multi_head,
    "conv1d": _conv1d,
    "conv2d": _conv2d,
    "depthwise conv": _depthwise,
    "conv_transpose1d": _transposed_conv,
    "pool": _pool,
    "adaptive pool": _adaptive_pool,
    "lp pool": _lp_pool,
    "interpolate": _interpolate,
    "unfold": _im2col,
    "fold": _col2im,
    "pixel_shuffle": lambda _, x: F.pixel_shuffle(x, 2),
    "pixel_unshuffle": lambda _, x: F.pixel_unshuffle(x, 2),
    "channel_shuffle": lambda c, x: F.channel_shuffle(x, c.choice([2, 3])),
    "grid_sample": _grid_sample,
    "fft": _fft,
    "fft and back": _fft_back,
    "complex pairs": _complex_pairs,
    "recurrent cell": _cell,
    "recurrent layer": _rnn,
    "cross_entropy": _cross_entropy,
    "losses": _losses,
    "losses of probabilities": _probabilities,
    "distances": _distances,
    "cosine": _cosine,
    "in-place part": _in_place,
    "assigned part": _assigned,
    "in-place": _in_place_whole,
}
