"""What users of 0.2 import goes on working: the same names, and old paths with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest

import quietgrad as qg

PUBLIC = {
    "quietgrad": """
        AutomaticClip Clip Codec FlatClip Gaussian Ledger LowRank Mechanism Noise NoiseDraw NoiseSource Observer
        PerGroupClip PoissonBatches PoissonSampler Post Privatizer Program Public RandomMask Release Representation
        SeededSource StatisticRelease Statistics Step Subspace accounting audit both calibrate
        check_independence collate_possibly_empty distributed federated fix make_private methods public_losses rules
        schedules then within
    """,
    "quietgrad.accounting": """
        Event GaussianEvent JointEvent Ledger MallowsSelection Phase attack_advantage calibrate coalesce
        delta effective_multiplier epsilon event_from_dict event_to_dict phase_from_dict phase_to_dict
        plan pld rate_within repeat_and_select smallest_noise steps_within
    """,
    "quietgrad.audit": """
        AuditReport MembershipReport NeighbourReport audit_input_canaries audit_mechanism audit_one_run
        compare_neighbours guess lira one_run_epsilon one_run_mu rmia success_bound threshold_attack
    """,
    "quietgrad.distributed": "AllReduce Reducer SingleProcess copy_weights",
    "quietgrad.federated": """
        FederatedServer Shares Task encode_update noised_update restored shortened train_locally
    """,
    "quietgrad.integrations.hugging_face": "PrivacyArguments PrivateTrainer PrivateTraining example_losses",
    "quietgrad.integrations.lightning": "PrivateModule",
    "quietgrad.integrations.logs": "ReleasedLog mlflow tensorboard wandb",
    "quietgrad.integrations.pretrained": "causal_model image_encoder model_folder",
    "quietgrad.methods": """
        biased_gep datalens dp_power_sgd dp_sgd gep gip pdp_sgd posterior_freeze random_freeze random_k
        ranked_freeze rgp rgp_random rpdp_sgd top_groups
    """,
    "quietgrad.rules": "clip_for_momentum",
    "quietgrad.schedules": """
        Complement Cooling Exponential Linear PerEpoch Piecewise Schedule check_fits epoch_of steps_of value_at
    """,
    "quietgrad.sklearn": "PrivacyWarning PrivateClassifier",
}
"""Public names of 0.2, frozen; tests/integrations/test_flower.py imports those of Flower."""

DEPRECATED = {
    "quietgrad.capture": "ADAPTERS Adapter inputs_for",
    "quietgrad.gradients": "BlockGrads BlockwiseGrads ClippedSum DenseGrad FactoredGrad PerSampleGrads Released",
    "quietgrad.program": "Mean SecondMoments Statistic",
}
"""Paths of 0.2 that warn and leave in 0.4."""


RENAMED = {"quietgrad.federated": {"shortened", "restored"}}
"""Names of 0.2 that warn and leave in 0.4."""


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_name_is_still_there_and_warns_if_it_was_renamed(module: str) -> None:
    package = importlib.import_module(module)
    warned = set()
    for name in PUBLIC[module].split():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert hasattr(package, name), name
        warned |= {name for warning in caught if warning.category is DeprecationWarning}
    assert warned == RENAMED.get(module, set())


@pytest.fixture
def _not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a fresh process: a module warns when it is imported first."""
    for path in DEPRECATED:
        monkeypatch.delitem(sys.modules, path, raising=False)
        monkeypatch.delitem(vars(qg), path.rpartition(".")[2], raising=False)  # hasattr would import it


@pytest.mark.usefixtures("_not_imported")
@pytest.mark.parametrize("path", DEPRECATED)
def test_an_old_path_warns_and_gives_the_new_names(path: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{path} is deprecated and leaves in 0.4. Use qg."):
        module = importlib.import_module(path)
    for name in DEPRECATED[path].split():
        found = getattr(module, name)
        if name != "ADAPTERS":  # a table of 0.2; qg.register_adapter replaces it
            assert found is getattr(qg, name), name


@pytest.mark.usefixtures("_not_imported")
@pytest.mark.parametrize("path", DEPRECATED)
def test_an_old_attribute_warns(path: str) -> None:
    name = path.rpartition(".")[2]
    with pytest.warns(DeprecationWarning, match=f"{path} is deprecated"):
        module = getattr(qg, name)
    assert module.__name__ == path


def test_import_warns_of_nothing() -> None:
    assert not {name for name in qg.__all__ if f"quietgrad.{name}" in DEPRECATED}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        qg.nothing  # noqa: B018
