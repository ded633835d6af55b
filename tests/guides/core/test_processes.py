"""Workers of joblib that leave while there is work."""

import warnings
from pathlib import Path

import pytest
from joblib.externals.loky import process_executor

from guides.core.processes import workers_may_leave
from zoo.fitting.side_by_side import Here


def work_and_leave(i: int) -> int:
    """After its second piece a worker leaves, as if its memory had grown too much."""
    process_executor._MEMORY_LEAK_CHECK_DELAY = -1.0
    process_executor._MAX_MEMORY_LEAK_SIZE = -float("inf")
    return i


@pytest.mark.slow
def test_all_work_is_done_where_warnings_are_errors():
    """Two workers leave when two of six pieces are left."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(Here(2).results_of(work_and_leave, [(i,) for i in range(6)], Path())) == list(range(6))


def test_joblib_still_says_so():
    """The words are those that the installed joblib has; nothing else is silenced, nor afterwards."""
    words = Path(process_executor.__file__).read_text("utf-8").replace('"\n', "").split()
    said = "A worker stopped while some jobs were given to the executor."
    assert said in " ".join(words).replace('" "', "").replace('"', "")
    with workers_may_leave():
        warnings.warn(said + " This can be caused by ...", stacklevel=1)
        with pytest.raises(UserWarning, match="another"):
            warnings.warn("another", stacklevel=1)
    with pytest.raises(UserWarning, match="A worker stopped"):
        warnings.warn(said, stacklevel=1)
