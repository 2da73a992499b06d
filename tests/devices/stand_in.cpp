// "standin": a torch device for tests whose memory is the CPU's and whose operators are the CPU's kernels.
//
// Tensors on it have storage, strides, version counters, an autograd thread and a random generator of their own, as on
// a GPU. What a GPU would refuse (operands on two devices, another device's generator) and where it would make the host
// wait (.item(), copies, shapes that depend on values) is reported to a callback, which may turn it into an error.
//
// What cannot be seen here: races between streams, rounding of a GPU's kernels, memory that runs out.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <mutex>
#include <unordered_map>
#include <unordered_set>

namespace {

using at::Tensor;
using Maybe = std::optional<Tensor>;
const auto STANDIN = c10::DeviceType::PrivateUse1;
const c10::Device HERE(STANDIN, 0);

bool is_here(const Tensor& t) { return t.defined() && t.device().type() == STANDIN; }

// ---- reports ---------------------------------------------------------------------------------------------------

using Callback = int (*)(const char* kind, const char* name);
Callback callback = nullptr;

void report(const char* kind, const std::string& name) {
  if (callback && callback(kind, name.c_str()))
    TORCH_CHECK(false, "Expected all tensors to be on the same device: ", kind, " in ", name);
}

// ---- memory, streams, random numbers ---------------------------------------------------------------------------

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* p = c10::GetCPUAllocator()->raw_allocate(bytes);
    return {p, p, &release, HERE};
  }
  static void release(void* p) { if (p) c10::GetCPUAllocator()->raw_deallocate(p); }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} memory;

struct Pinned final : c10::Allocator {  // memory of the CPU that is known by its address
  static std::mutex& lock() { static std::mutex m; return m; }
  static std::unordered_map<void*, size_t>& known() { static std::unordered_map<void*, size_t> k; return k; }
  c10::DataPtr allocate(size_t bytes) override {
    void* p = c10::GetCPUAllocator()->raw_allocate(bytes);
    std::lock_guard<std::mutex> guard(lock());
    if (p) known()[p] = bytes;
    return {p, p, &release, c10::Device(c10::kCPU)};
  }
  static void release(void* p) {
    { std::lock_guard<std::mutex> guard(lock()); known().erase(p); }
    if (p) c10::GetCPUAllocator()->raw_deallocate(p);
  }
  static bool holds(const void* address) {
    std::lock_guard<std::mutex> guard(lock());
    for (auto& [start, bytes] : known())
      if (address >= start && address < static_cast<char*>(start) + bytes) return true;
    return false;
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
} pinned;

struct Guard final : c10::impl::DeviceGuardImplInterface {
  static c10::Stream stream() { return c10::Stream(c10::Stream::DEFAULT, HERE); }
  c10::DeviceType type() const override { return STANDIN; }
  c10::Device exchangeDevice(c10::Device) const override { return HERE; }
  c10::Device getDevice() const override { return HERE; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::Stream getStream(c10::Device) const override { return stream(); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(); }
  c10::Stream getNewStream(c10::Device, int) const override { return stream(); }
  c10::Stream exchangeStream(c10::Stream s) const override { return s; }
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void** e, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {
    *e = reinterpret_cast<void*>(1);
  }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, const c10::DeviceIndex) const noexcept override {}
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override { report("wait", "synchronizeStream"); }
  void synchronizeEvent(void*) const override { report("wait", "synchronizeEvent"); }
  void synchronizeDevice(const c10::DeviceIndex) const override { report("wait", "synchronizeDevice"); }
  void recordDataPtrOnStream(const c10::DataPtr&, const c10::Stream&) const override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Random final : at::CPUGeneratorImpl {  // its numbers come from `inner`, which no CPU operator reads
  at::Generator inner = at::detail::createCPUGenerator(12345);
  Random() : at::CPUGeneratorImpl(12345) {
    device_ = HERE;
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return inner.get_state().getIntrusivePtr(); }
  void set_state(const c10::TensorImpl& s) override { inner.unsafeGetGeneratorImpl()->set_state(s); }
};
at::Generator& default_random() { static at::Generator g = at::make_generator<Random>(); return g; }
at::Generator inner_of(const at::Generator& g) { return static_cast<Random*>(g.unsafeGetGeneratorImpl())->inner; }

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return default_random(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::make_generator<Random>(); }
  bool isPinnedPtr(const void* p) const override { return Pinned::holds(p); }
  at::Allocator* getPinnedMemoryAllocator() const override { return &pinned; }
  at::Device getDeviceFromPtr(void*) const override { return HERE; }
  void resizePrivateUse1Bytes(const c10::Storage& s, size_t bytes) const override { resize(s, bytes); }
  static void resize(const c10::Storage& s, size_t bytes) {
    auto fresh = memory.allocate(bytes);
    if (s.nbytes() && bytes) memcpy(fresh.get(), s.data(), std::min(bytes, s.nbytes()));
    s.set_data_ptr_noswap(std::move(fresh));
    s.set_nbytes(bytes);
  }
};

// ---- the same bytes as a tensor of the other device --------------------------------------------------------------

c10::Storage storage_on(const c10::Storage& s, c10::Device device, c10::Allocator* allocator) {
  auto* owner = new c10::Storage(s);
  c10::DataPtr data(s.mutable_data(), owner, [](void* p) { delete static_cast<c10::Storage*>(p); }, device);
  return c10::Storage(c10::Storage::use_byte_size_t(), s.nbytes(), std::move(data), allocator, true);
}

Tensor tensor_on(const Tensor& like, c10::Storage s, c10::DispatchKey key) {
  auto t = at::detail::make_tensor<c10::TensorImpl>(std::move(s), c10::DispatchKeySet(key), like.dtype());
  t.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  if (like.is_conj()) t._set_conj(true);
  if (like.is_neg()) t._set_neg(true);
  return t;
}

struct Aliases {  // for one operator call; a storage has one alias, so that views stay views
  std::unordered_map<c10::StorageImpl*, c10::Storage> on_cpu, on_device;
  Tensor cpu(const Tensor& t) {
    if (!is_here(t)) return t;
    auto& s = on_cpu[t.storage().unsafeGetStorageImpl()];
    if (!s) {
      s = storage_on(t.storage(), c10::kCPU, c10::GetCPUAllocator());
      on_device[s.unsafeGetStorageImpl()] = t.storage();
    }
    return tensor_on(t, s, c10::DispatchKey::CPU);
  }
  Maybe cpu(const Maybe& t) { return t ? Maybe(cpu(*t)) : t; }
  Tensor device(const Tensor& t) {
    if (!t.defined() || is_here(t) || t.layout() != at::kStrided) return t;
    auto* key = t.storage().unsafeGetStorageImpl();
    auto found = on_device.find(key);
    if (found == on_device.end()) found = on_device.emplace(key, storage_on(t.storage(), HERE, &memory)).first;
    return tensor_on(t, found->second, c10::DispatchKey::PrivateUse1);
  }
};

// ---- every operator without a kernel below -----------------------------------------------------------------------

// CUDA copies a CPU index to the device, and waits for the copy.
const std::unordered_set<std::string> TAKE_CPU_INDEX = {
    "aten::index.Tensor", "aten::index_put_", "aten::_index_put_impl_", "aten::index_put",
    "aten::_unsafe_index.Tensor", "aten::index.Tensor_out", "aten::_unsafe_index_put"};
const std::unordered_set<std::string> TAKE_CPU_OPERAND = {"aten::_pack_padded_sequence"};  // lengths, by contract
// Shapes that depend on values, and LAPACK functions that wait, as torch's own documentation says of each of them. QR
// and `cholesky_ex` do not. A name counts with all its overloads.
const std::unordered_set<std::string> WAIT = {
    "aten::nonzero", "aten::masked_select", "aten::_unique2", "aten::unique_dim", "aten::unique_consecutive",
    "aten::repeat_interleave.Tensor", "aten::bincount", "aten::equal", "aten::_linalg_eigh", "aten::_linalg_svd",
    "aten::_linalg_check_errors", "aten::linalg_lstsq", "aten::_linalg_det", "aten::_linalg_slogdet"};

std::string name_of(const c10::OperatorHandle& op) {
  auto n = op.operator_name();
  return n.overload_name.empty() ? n.name : n.name + "." + n.overload_name;
}

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const auto name = name_of(op);
  const size_t count = schema.arguments().size(), base = stack->size() - count;
  const std::vector<c10::IValue> given(stack->begin() + base, stack->end());
  Aliases aliases;
  bool has_cpu = false, has_device = false, has_mask = false, has_foreign_random = false;
  auto look = [&](const Tensor& t, bool is_index) {
    if (!t.defined()) return;
    has_device |= is_here(t);
    has_cpu |= t.device().is_cpu() && t.dim() > 0;  // a single number may come from the CPU
    has_mask |= is_index && (t.scalar_type() == at::kBool || t.scalar_type() == at::kByte);
  };
  for (size_t i = 0; i < count; i++) {
    const auto& v = given[i];
    auto& to = (*stack)[base + i];
    if (v.isTensor()) {
      look(v.toTensor(), false);
      to = aliases.cpu(v.toTensor());
    } else if (v.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& t : v.toTensorVector()) { look(t, false); list.push_back(aliases.cpu(t)); }
      to = c10::List<Tensor>(list);
    } else if (v.isOptionalTensorList()) {
      c10::List<Maybe> list;
      for (const Maybe& t : v.toOptionalTensorVector()) { if (t) look(*t, true); list.push_back(aliases.cpu(t)); }
      to = list;
    } else if (v.isDevice() && v.toDevice().type() == STANDIN) {
      to = c10::Device(c10::kCPU);
      has_device = true;
    } else if (v.isGenerator()) {
      if (v.toGenerator().device().type() == STANDIN) to = inner_of(v.toGenerator());
      else has_foreign_random = true;
    } else if (v.isNone() && schema.arguments()[i].name() == "generator") {
      to = inner_of(default_random());
    }
  }
  if (has_foreign_random && has_device) report("mixed", name + " (generator)");
  if (has_cpu && has_device && !TAKE_CPU_OPERAND.count(name))
    report(TAKE_CPU_INDEX.count(name) ? "wait" : "mixed", name);
  if (has_mask || WAIT.count(name) || WAIT.count(op.operator_name().name)) report("wait", name);
  {
    at::AutoDispatchBelowADInplaceOrView below;
    op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  }
  std::unordered_map<c10::Symbol, Tensor> written;  // arguments that the operator returns after writing to them
  for (size_t i = 0; i < count; i++) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite() && given[i].isTensor())
      for (auto& set : alias->beforeSets()) written[set] = given[i].toTensor();
  }
  const size_t results = schema.returns().size(), first = stack->size() - results;
  for (size_t i = 0; i < results; i++) {
    auto& r = (*stack)[first + i];
    const auto* alias = schema.returns()[i].alias_info();
    if (r.isTensorList()) {
      std::vector<Tensor> list;
      for (const Tensor& t : r.toTensorVector()) list.push_back(aliases.device(t));
      r = c10::List<Tensor>(list);
    } else if (r.isTensor()) {
      Tensor t = r.toTensor();
      const bool is_argument =
          alias && alias->isWrite() && !alias->beforeSets().empty() && written.count(*alias->beforeSets().begin());
      if (!is_argument) { r = aliases.device(t); continue; }
      Tensor mine = written[*alias->beforeSets().begin()];
      // A kernel may have given an `out` argument new memory.
      if (is_here(mine) && (t.sizes() != mine.sizes() || (t.numel() && t.data_ptr() != mine.data_ptr()))) {
        Tensor moved = tensor_on(t, storage_on(t.storage(), HERE, &memory), c10::DispatchKey::PrivateUse1);
        mine.unsafeGetTensorImpl()->set_storage_keep_dtype(moved.storage());
        mine.unsafeGetTensorImpl()->set_sizes_and_strides(moved.sizes(), moved.strides(), moved.storage_offset());
      }
      r = mine;
    }
  }
}

// ---- kernels of its own ------------------------------------------------------------------------------------------

using Ints = c10::IntArrayRef;
using Dtype = std::optional<at::ScalarType>;
using MaybeLayout = std::optional<at::Layout>;
using MaybeDevice = std::optional<c10::Device>;

Tensor empty(Ints size, Dtype dtype, MaybeLayout, MaybeDevice, std::optional<bool>, std::optional<at::MemoryFormat> f) {
  const auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, &memory, keys, c10::dtype_or_default(dtype), f);
}
Tensor empty_strided(Ints size, Ints stride, Dtype dtype, MaybeLayout, MaybeDevice, std::optional<bool>) {
  const auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &memory, keys, c10::dtype_or_default(dtype));
}
Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  // CUDA waits for every copy between host and device that is not `non_blocking`.
  if (is_here(self) && to.is_cpu()) report("wait", "copy to the CPU");
  if (self.is_cpu() && is_here(to)) report(non_blocking ? "upload" : "wait", "copy from the CPU");
  Aliases aliases;
  at::AutoDispatchBelowADInplaceOrView below;
  aliases.cpu(to).copy_(aliases.cpu(self));
  return to;
}
Tensor copy_from_and_resize(const Tensor& self, const Tensor& to) {
  if (to.sizes() != self.sizes()) to.resize_(self.sizes());
  return copy_from(self, to, false);
}
at::Scalar local_scalar(const Tensor& self) {
  report("wait", "item");
  return Aliases().cpu(self).item();
}
const Tensor& resize_(const Tensor& self, Ints size, std::optional<at::MemoryFormat>) {
  const size_t needed = (self.storage_offset() + c10::multiply_integers(size)) * self.itemsize();
  if (needed > self.storage().nbytes()) Hooks::resize(self.storage(), needed);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return self;
}
Tensor& set_storage(Tensor& self, at::Storage s, int64_t offset, Ints size, Ints stride) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(s));
  if (stride.data() != nullptr && stride.size() == size.size()) {
    impl->set_sizes_and_strides(size, stride, offset);
  } else {
    impl->set_sizes_contiguous(size);
    impl->set_storage_offset(offset);
  }
  return self;
}
Tensor& set_source_storage(Tensor& self, at::Storage s) {
  const int64_t count = s.nbytes() / self.itemsize();
  return set_storage(self, s, 0, {count}, {});
}
Tensor& set_source_tensor(Tensor& self, const Tensor& t) {
  return set_storage(self, t.storage(), t.storage_offset(), t.sizes(), t.strides());
}
Tensor convolution(const Tensor& x, const Tensor& w, const Maybe& bias, Ints stride, Ints padding, Ints dilation,
                   bool transposed, Ints output_padding, int64_t groups) {
  Aliases a;
  at::AutoDispatchBelowAutograd below;
  return a.device(at::convolution(
      a.cpu(x), a.cpu(w), a.cpu(bias), stride, padding, dilation, transposed, output_padding, groups));
}
std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& g, const Tensor& x, const Tensor& w, Ints stride, Ints padding, Ints dilation, bool transposed,
    Ints output_padding, int64_t groups, std::array<bool, 3> mask) {
  Aliases a;
  at::AutoDispatchBelowAutograd below;
  const std::vector<int64_t> bias{transposed ? w.size(1) * groups : w.size(0)};
  auto [gx, gw, gb] = at::convolution_backward(
      a.cpu(g), a.cpu(x), a.cpu(w), mask[2] ? c10::OptionalArrayRef<int64_t>(bias) : std::nullopt, stride, padding,
      dilation, transposed, output_padding, groups, mask);
  return {a.device(gx), a.device(gw), a.device(gb)};
}
int64_t choose_attention(const Tensor&, const Tensor&, const Tensor&, const Maybe&, double, bool,
                         std::optional<double>, bool) {
  return 0;  // the composite one
}
std::tuple<Tensor, Tensor> dropout(const Tensor& x, double p, std::optional<bool> train) {
  // The CPU's kernel would read the CPU's generator.
  if (!train.value_or(true)) return {x.clone(), at::ones_like(x, x.options().dtype(at::kBool))};
  Tensor mask = at::empty_like(x, x.options().dtype(at::kBool)).bernoulli_(1 - p);
  return {x * mask * (p < 1 ? 1 / (1 - p) : 0.0), mask};
}

// The CPU has no fused cells of recurrent layers.
std::tuple<Tensor, Tensor, Tensor> lstm_cell(const Tensor& x, const Tensor& h, const Tensor& cx, const Maybe& bx,
                                             const Maybe& bh) {
  Tensor gates = x + h;
  if (bx && bx->defined()) gates = gates + *bx + *bh;
  auto parts = gates.chunk(4, 1);
  Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(), o = parts[3].sigmoid();
  Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}
std::tuple<Tensor, Tensor, Tensor> lstm_cell_backward(const Maybe& gh, const Maybe& gc, const Tensor& cx,
                                                      const Tensor& cy, const Tensor& workspace, bool has_bias) {
  if (!(gh && gh->defined()) && !(gc && gc->defined())) return {Tensor(), Tensor(), Tensor()};
  Tensor grad_h = gh && gh->defined() ? *gh : at::zeros_like(cy), grad_c = gc && gc->defined() ? *gc : at::zeros_like(cy);
  auto parts = workspace.chunk(4, 1);
  Tensor i = parts[0], f = parts[1], g = parts[2], o = parts[3], t = cy.tanh();
  Tensor c = grad_c + grad_h * o * (1 - t * t);
  Tensor gates = at::cat({c * g * i * (1 - i), c * cx * f * (1 - f), c * i * (1 - g * g), grad_h * t * o * (1 - o)}, 1);
  return {gates, c * f, has_bias ? gates.sum(0) : Tensor()};
}

std::tuple<Tensor, Tensor> gru_cell(const Tensor& x, const Tensor& h, const Tensor& hx, const Maybe& bx,
                                    const Maybe& bh) {
  const bool has_bias = bx && bx->defined();
  auto in = (has_bias ? x + *bx : x).chunk(3, 1), hidden = (has_bias ? h + *bh : h).chunk(3, 1);
  Tensor r = (in[0] + hidden[0]).sigmoid(), z = (in[1] + hidden[1]).sigmoid(), n = (in[2] + r * hidden[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, hidden[2]}, 1)};
}
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gru_cell_backward(const Tensor& g, const Tensor& workspace,
                                                                     bool has_bias) {
  auto parts = workspace.chunk(5, 1);
  Tensor r = parts[0], z = parts[1], n = parts[2], hx = parts[3], hn = parts[4];
  Tensor dz = g * (hx - n) * z * (1 - z), dn = g * (1 - z) * (1 - n * n), dr = dn * hn * r * (1 - r);
  Tensor in = at::cat({dr, dz, dn}, 1), hidden = at::cat({dr, dz, dn * r}, 1);
  return {in, hidden, g * z, has_bias ? in.sum(0) : Tensor(), has_bias ? hidden.sum(0) : Tensor()};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage", set_source_storage);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("set_.source_Tensor", set_source_tensor);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_fused_sdp_choice", choose_attention);
  m.impl("native_dropout", dropout);
  m.impl("_thnn_fused_lstm_cell", lstm_cell);
  m.impl("_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward);
  m.impl("_thnn_fused_gru_cell", gru_cell);
  m.impl("_thnn_fused_gru_cell_backward", gru_cell_backward);
}

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(conv2d, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(layer_norm, fp32)
  KERNEL_PRIVATEUSEONE(group_norm, fp32)
  KERNEL_PRIVATEUSEONE(cross_entropy_loss, fp32)
  KERNEL_PRIVATEUSEONE(nll_loss, fp32)
}

Tensor rng_state() { return default_random().get_state(); }
void set_rng_state(const Tensor& state) { default_random().set_state(state); }
void manual_seed(int64_t seed) { default_random().set_current_seed(seed); }

TORCH_LIBRARY(standin, m) {
  m.def("rng_state() -> Tensor", rng_state);
  m.def("set_rng_state(Tensor state) -> ()", set_rng_state);
  m.def("manual_seed(int seed) -> ()", manual_seed);
}

const bool installed = [] {
  c10::SetAllocator(STANDIN, &memory);
  at::RegisterPrivateUse1HooksInterface(new Hooks());
  return true;
}();

}  // namespace

extern "C" void standin_listen(Callback function) { callback = function; }
