"""Count factors of a Dask array: a real scheduler and two workers, one of which is killed on the way."""

from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
import pytest

from silentgrad.factors.count_factors import CountFactors
from silentgrad.factors.state import Climb
from workers import worker_at

distributed = pytest.importorskip("distributed", reason="the extra cluster is not installed")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")


def test_a_killed_workers_rows_are_made_anew(
    tmp_path: Path, scheduler: str, start: Callable[..., BaseProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask.array

    random = np.random.RandomState(0)
    counts = random.poisson(np.exp(random.randn(300, 2) @ random.randn(2, 12) / 2)).astype(np.float32)
    covariate = random.randn(300)
    expected = CountFactors(2, likelihood="poisson").fit(counts, covariates=covariate)
    doomed, _ = [start(*worker_at(scheduler)) for _ in range(2)]
    advance = Climb.advance

    def advanced(climb: Climb) -> bool:
        if climb.accepted == 3:
            doomed.kill()
        return advance(climb)

    monkeypatch.setattr(Climb, "advance", advanced)
    with distributed.Client(scheduler) as client:
        client.wait_for_workers(2)
        model = CountFactors(2, likelihood="poisson")
        factors = model.fit_transform(dask.array.from_array(counts, chunks=(80, 12)), covariates=covariate)
        assert len(client.scheduler_info()["workers"]) == 1
    assert model.elbo_ == pytest.approx(expected.elbo_, rel=1e-10)
    np.testing.assert_allclose(factors, expected.transform(counts, covariates=covariate), atol=1e-3)
