from pathlib import Path

import numpy as np
import pytest
import torch

from guides.core.rng import kept_rng, seeded_rng

ROOT = Path(__file__).parents[3]


@pytest.fixture
def gpu(monkeypatch) -> dict:
    """Stands in for the random state of a GPU in use."""
    state = {"seed": "the user's", "asked": []}

    def manual_seed_all(seed: int) -> None:
        state.update(seed=seed, asked=[*state["asked"], seed])

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state["seed"])
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda seed, device: state.update(seed=seed))
    monkeypatch.setattr(torch.cuda, "manual_seed_all", manual_seed_all)
    return state


def test_a_seed_gives_the_same_numbers_and_leaves_no_trace():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(2)
    undisturbed = torch.rand(3)
    torch.manual_seed(2)
    with seeded_rng(1):
        assert torch.equal(torch.rand(3), expected)
    with kept_rng():
        assert torch.equal(torch.rand(3), undisturbed)
    assert torch.equal(torch.rand(3), undisturbed)


def test_seeds_may_be_numpys():
    with seeded_rng(3):
        expected = torch.rand(3)
    with seeded_rng(np.arange(4)[3]):
        assert torch.equal(torch.rand(3), expected)


def test_a_fault_within_leaves_no_trace_either():
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="shape"), seeded_rng(1):
        torch.rand(3).reshape(2)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_gpu_in_use_is_seeded_and_its_state_given_back(gpu):
    with seeded_rng(7):
        assert gpu["seed"] == 7
    assert gpu == {"seed": "the user's", "asked": [7]}
    with kept_rng():
        torch.cuda.manual_seed_all(8)
    assert gpu["seed"] == "the user's"


def test_a_gpu_that_is_not_in_use_is_left_alone(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    with seeded_rng(7):
        pass
    assert gpu == {"seed": "the user's", "asked": []}


def test_nobody_else_forks_random_states():
    """``fork_rng(devices=[])`` with ``torch.manual_seed`` would leave a user's GPU at our seed."""
    files = [path for room in ("guides", "zoo") for path in (ROOT / room).rglob("*.py")]
    assert [path.name for path in files if "fork_rng" in path.read_text("utf-8")] == ["rng.py"]
