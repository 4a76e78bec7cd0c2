"""Finds the mesh and the layouts that train a model fastest: tries each mesh of the ranks with one of the searches."""

import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from keras_par.base.sizes import no_less, size
from keras_par.plan.cost import Prediction, predict
from keras_par.plan.layout import Axes, complaint
from keras_par.plan.machine import Machine
from keras_par.plan.mesh import Mesh
from keras_par.plan.options import Search, Zero
from keras_par.plan.trace import Trace
from keras_par.plan.training_setup import Setting
from keras_par.searching import dynamic, exact
from keras_par.searching.classes import tensor_classes
from keras_par.searching.memory_limited import Solver, within
from keras_par.searching.meshes import DATA, MODEL, halvings, meshes, named
from keras_par.searching.problem import Problem
from keras_par.searching.problem_builder import ALL, SUMS, Counted, Maker

STAGES: tuple[Zero, ...] = (1, 2, 3)
MORE_RANKS = 14  # doublings that are looked at for a model that does not fit


@dataclass(frozen=True)
class Candidate:
    """A mesh, with what was found for it.

    Args:
        mesh: the sizes of its axes.
        layouts: of the variables that are divided, by path.
        prediction: of a step.
        recomputed: the names of the layers that are computed once more in the backward pass.
        classes: of the tensors that were decided together; None if none were decided.
        zero: the stage of ZeRO.
    """

    mesh: dict[str, int]
    layouts: dict[str, Axes]
    prediction: Prediction
    recomputed: tuple[str, ...] = ()
    classes: Sequence[int] | None = None
    zero: Zero = 0


@dataclass(frozen=True)
class Found:
    """What a search found.

    Args:
        best: the fastest that fits.
        others: the best of each other mesh that was looked at, see `Searcher.tried`; some may not fit.
        data_parallel: what it is compared with, whether it fits or not.
        mode: of the search.
        memory: bytes of a rank.
    """

    best: Candidate
    others: list[Candidate] = field(default_factory=list)
    data_parallel: Candidate | None = None
    mode: Search = "dynamic"
    memory: float = math.inf


def find(
    trace: Trace,
    machine: Machine,
    num_ranks: int,
    batch_size: int,
    mode: Search = "dynamic",
    memory: float | None = None,
    mesh: Mapping[str, int] | None = None,
    fixed: Mapping[str, Axes] | None = None,
    num_axes: int = 2,
) -> Found:
    """The best plan for a model.

    Args:
        trace: of the model.
        machine: on which it is trained.
        num_ranks: of the job.
        batch_size: rows on all ranks together.
        mode: the search.
        memory: bytes that a rank may hold; the machine's unless given.
        mesh: the ranks by rows and by the other axes, as `meshes.named` names them; any unless given.
        fixed: layouts that are said already, by path.
        num_axes: that a mesh may have.

    Raises:
        ValueError: nothing fits; the sentence names the smallest number of ranks, and the least memory, that were found
            to do.
    """
    capacity = machine.memory_gb * 2**30 if memory is None else memory
    searcher = Searcher(trace, machine, batch_size, mode, capacity, fixed or {}, num_axes)
    found = searcher.tried([dict(mesh)]) if mesh is not None else searcher.candidates(num_ranks)
    if not any(map(searcher.fits, found)):
        raise ValueError(searcher.refusal(num_ranks, mesh))
    best = min(filter(searcher.fits, found), key=seconds_of)
    others = sorted((each for each in found if each is not best), key=seconds_of)
    return Found(best, others, searcher.data_parallel(num_ranks), mode, capacity)


def seconds_of(candidate: Candidate) -> float:
    """Of a step."""
    return candidate.prediction.seconds


@dataclass(eq=False)
class Searcher:
    """Searches one trace.

    Args:
        trace: as `find` has them, with the other arguments.
    """

    trace: Trace
    machine: Machine
    batch_size: int
    mode: Search
    capacity: float
    fixed: Mapping[str, Axes]
    num_axes: int

    def __post_init__(self) -> None:
        self._classes: Sequence[int] = tensor_classes(self.trace, self.fixed)
        self._best: dict[tuple[int, ...], Candidate | None] = {}
        self._fastest: dict[tuple[int, ...], Candidate | None] = {}
        self._predictions: dict[tuple, Prediction] = {}

    def candidates(self, num_ranks: int) -> list[Candidate]:
        """The best of each mesh that is tried: of all, for `recursive` of those that halving comes to.

        Fewer ranks are compared by time alone. All other meshes are looked at where none of these fits.
        """
        if self.mode == "recursive":

            def seconds(*sizes: int) -> float:
                find = self.best_of if math.prod(sizes) == num_ranks else self.fastest_of
                found = find(named(sizes))
                return math.inf if found is None else found.prediction.seconds

            found = self.tried([named(each) for each in halvings(num_ranks, seconds, self.num_axes)])
            if any(map(self.fits, found)):
                return found
        return self.tried(meshes(num_ranks, self.num_axes))

    def tried(self, wanted: Sequence[Mapping[str, int]]) -> list[Candidate]:
        """For each mesh that can be its fastest plan that fits, or the fastest of all, which does not.

        A limit makes no plan faster, but for what a stage of ZeRO saves in updates. So a mesh is not searched within
        the memory once another has a plan that fits and beats what this one would reach in any memory.
        """
        quickest = [(quick, mesh) for mesh in wanted if (quick := self.fastest_of(mesh)) is not None]
        found, least = [], math.inf
        for quick, mesh in sorted(quickest, key=lambda pair: seconds_of(pair[0])):
            best = self.best_of(mesh) if seconds_of(quick) < least else None
            found.append(best or quick)
            least = least if best is None else min(least, seconds_of(best))
        return found

    def fits(self, candidate: Candidate) -> bool:
        """True if a rank can hold what it takes."""
        return candidate.prediction.num_bytes <= self.capacity

    def setting(self, mesh: Mapping[str, int], zero: Zero = 0) -> Setting:
        """The machine with a mesh, and a stage of ZeRO."""
        return Setting(self.machine, mesh, DATA, self.batch_size, zero)

    def fastest_of(self, mesh: Mapping[str, int]) -> Candidate | None:
        """The fastest for a mesh in any memory; None if the batch or what is said already cannot be cut so."""
        key = tuple(mesh.values())
        if key not in self._fastest:
            self._fastest[key] = self._fitting(self._made(mesh), math.inf) if self.can_be(mesh) else None
        return self._fastest[key]

    def best_of(self, mesh: Mapping[str, int]) -> Candidate | None:
        """The fastest for a mesh that fits; None if nothing does."""
        key = tuple(mesh.values())
        if key not in self._best:
            best = self.fastest_of(mesh)
            self._best[key] = best if best is None or self.fits(best) else self._within_capacity(mesh)
        return self._best[key]

    def can_hold(self, mesh: Mapping[str, int]) -> bool:
        """True if a plan for a mesh fits; searches only where plans that take the fewest bytes do not say so."""
        least, bound = self.fewest_bytes(mesh)
        return least <= self.capacity or (bound <= self.capacity and self.best_of(mesh) is not None)

    def fewest_bytes(self, mesh: Mapping[str, int]) -> tuple[float, float]:
        """What a rank holds by the plan for a mesh that takes the fewest bytes, so far as is known without a search.

        Infinite if that is not known; and a bound below which no plan is.
        """
        least, bound = math.inf, math.inf
        for zero in (0, *self._stages(mesh)) if self.can_be(mesh) else ():
            for recomputes in self._recomputes:
                maker = self._made(mesh, zero, recomputes)
                *lower, upper = self._solvers(maker, SUMS)
                fewest = max(solver.fewest_bytes for solver in lower)
                bound = min(bound, fewest)
                choices = (solver.leanest for solver in (*lower, upper) if fewest <= least)
                least = min([least, *(self._step(maker, choice).num_bytes for choice in choices if choice is not None)])
        return least, bound

    def can_be(self, mesh: Mapping[str, int]) -> bool:
        """True if the batch, and what is said already, can be cut for a mesh."""
        return self.batch_size % mesh[DATA] == 0 and self.wrong_with(mesh) is None

    def wrong_with(self, mesh: Mapping[str, int]) -> str | None:
        """Why a layout that is said already cannot be on a mesh, None if all can."""
        plan = Mesh(tuple(mesh.values()), tuple(mesh), tuple(range(math.prod(mesh.values()))))
        shapes = {parameter.path: parameter.shape for parameter in self.trace.parameters}
        wrong = ((path, complaint(shapes[path], axes, plan)) for path, axes in self.fixed.items() if axes)
        return next((f"variable '{path}' cannot lie so: {why}" for path, why in wrong if why), None)

    @property
    def _recomputes(self) -> tuple[bool, ...]:
        """If layers may be computed once more: what is tried."""
        return (False, True) if any(operation.block for operation in self.trace.operations) else (False,)

    def _stages(self, mesh: Mapping[str, int]) -> tuple[Zero, ...]:
        """The stages of ZeRO that a mesh can have."""
        return STAGES if mesh[DATA] > 1 else ()

    def _made(self, mesh: Mapping[str, int], zero: Zero = 0, recomputes: bool = False) -> Maker:
        """The problem of a mesh, in which layers that are alike lie alike if that can be solved."""
        maker = Maker(self.trace, self.setting(mesh, zero), self.fixed, recomputes, self._classes)
        if self.mode == "exact" or not dynamic.is_entangled(maker.problem()):
            return maker
        self._classes = range(len(self.trace.tensors))
        return Maker(self.trace, maker.setting, self.fixed, recomputes, self._classes)

    def _within_capacity(self, mesh: Mapping[str, int]) -> Candidate | None:
        """For a mesh whose fastest plan does not fit the fastest of what does.

        Looked at are plans without a stage of ZeRO and those in the first stage that makes it fit, which is the
        fastest, each with and without recomputation.
        """

        def in_stage(zero: Zero) -> list[Candidate]:
            found = (self._fitting(self._made(mesh, zero, again), self.capacity) for again in self._recomputes)
            return [each for each in found if each is not None]

        found = in_stage(0) + next(filter(None, map(in_stage, self._stages(mesh))), [])
        return min(found, key=seconds_of, default=None)

    def _fitting(self, maker: Maker, limit: float) -> Candidate | None:
        """The best of what was made that fits into a memory."""
        solvers = self._solvers(maker, (ALL,) if math.isinf(limit) else SUMS)
        found = within(limit, solvers, functools.partial(self._step, maker))
        if found is None:
            return None
        choice, prediction = found
        again, setting = maker.recomputed(choice), maker.setting
        return Candidate(dict(setting.mesh), maker.layouts(choice), prediction, again, maker.classes, setting.zero)

    def _solvers(self, maker: Maker, sums: Sequence[Counted]) -> list[Solver]:
        """What solves the problem of each sum of bytes."""
        return [self._solver(maker.problem(counted)) for counted in sums]

    def _solver(self, problem: Problem) -> Solver:
        if self.mode == "exact":
            return exact.Solver(problem)
        try:
            return dynamic.Solver(problem)
        except dynamic.EntangledError:
            warnings.warn(
                "keras-par: on some meshes too many layers of this model depend on each other to find the best "
                "layouts: those that are found there may be a little slower.",
                stacklevel=2,
            )
            return dynamic.PartSolver(problem)

    def _step(self, maker: Maker, choice: list[int]) -> Prediction:
        """The step of a choice, predicted once: several sums of bytes and capacities lead to one choice."""
        layouts, setting, again = maker.layouts(choice), maker.setting, maker.recomputed(choice)
        key = tuple(setting.mesh.values()), setting.zero, tuple(layouts.items()), again
        if key not in self._predictions:
            self._predictions[key] = predict(self.trace, layouts, setting, again)
        return self._predictions[key]

    def data_parallel(self, num_ranks: int) -> Candidate | None:
        """Rows alone divided, None if that cannot be."""
        mesh = {DATA: num_ranks, MODEL: 1}
        if self.batch_size % num_ranks:
            return None
        return Candidate(mesh, {}, predict(self.trace, {}, self.setting(mesh)))

    def refusal(self, num_ranks: int, mesh: Mapping[str, int] | None) -> str:
        """Why there is no plan, and how many ranks there would be one for."""
        has = size(self.capacity)
        wanted = meshes(num_ranks, self.num_axes) if mesh is None else [mesh]
        if not any(self.batch_size % each[DATA] == 0 for each in wanted):
            return f"keras-par: a batch of {self.batch_size} rows cannot be cut for {num_ranks} ranks: give another."
        reasons = [self.wrong_with(each) for each in wanted]
        if all(reasons):
            return f"keras-par: {reasons[-1]}: change its layout."
        least = min(self.fewest_bytes(each)[0] for each in wanted)
        more = "more memory" if math.isinf(least) else no_less(least)
        if mesh is not None:
            shape = "x".join(map(str, mesh.values()))
            return (
                f"keras-par: the model does not fit into {has} a rank over the mesh {shape}: leave the mesh out, or "
                f"give each rank {more}."
            )
        needed = self.smallest(num_ranks)
        if needed is None:
            return (
                f"keras-par: no number of ranks was found for which the model fits into {has} a rank: give each rank "
                f"{more}."
            )
        return (
            f"keras-par: the model does not fit into {has} on each of {num_ranks} ranks: start {needed}, or give each "
            f"rank {more}."
        )

    def smallest(self, num_ranks: int) -> int | None:
        """The smallest of the next doublings of a number of ranks for which something fits.

        `exact` would take minutes for them all, and `dynamic` finds what fits as well.
        """
        searcher = replace(self, mode="dynamic") if self.mode == "exact" else self
        for doubling in range(1, MORE_RANKS):
            wanted = num_ranks << doubling
            if any(map(searcher.can_hold, meshes(wanted, self.num_axes))):
                return wanted
        return None
