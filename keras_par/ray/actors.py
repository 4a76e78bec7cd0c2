"""Starts a job's agents by Ray's actors, one on each place of a placement group."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from keras_par.agent.wire import VARIABLE
from keras_par.cluster.hosts import Place
from keras_par.launch.engines import Plan, Started

STATUS = 1  # of actors of which one has died


@dataclass(frozen=True)
class RayPlan(Plan):
    """How a job will be started on a placement group.

    Args:
        group: the placement group.
        bundles: the index in it of each rank's bundle.
        resources: of each bundle.
        content: the function that ranks call, as it was packed.
        start_seconds: that the actors may take to start.
        results: what ranks returned, pickled, by their numbers; filled as they end.
    """

    group: Any
    bundles: Sequence[int]
    resources: Mapping[str, float]
    content: bytes
    start_seconds: float
    results: dict[int, bytes | None] = field(default_factory=dict)

    @property
    def exported(self) -> dict[str, str]:
        """None: a rank has the variables of its actor."""
        return {}

    def start(self, invitation: str) -> Started:
        """Starts an actor for each rank."""
        self.results.clear()
        return Actors(self, invitation)


class Actors(Started):
    """The actors of a job.

    Args:
        plan: how it is started.
        invitation: by which agents find the launcher.
    """

    def __init__(self, plan: RayPlan, invitation: str):
        import ray

        from keras_par.ray.worker import Worker  # here, since Python warns of a program that its package has imported

        super().__init__("Ray")
        self._plan = plan
        kind, wanted = ray.remote(Worker), options(plan.resources)
        self._actors: list[Any] = [
            kind.options(**wanted, scheduling_strategy=on_bundle(plan.group, bundle)).remote()
            for bundle in plan.bundles
        ]
        ports = [actor.port.remote() for actor in self._actors]
        self._starts, self._deadline = dict(zip(ports, plan.places, strict=True)), time.monotonic() + plan.start_seconds
        content, port = ray.put(plan.content), ports[0]
        size = str(len(self._actors))
        given = {"RANK_SIZE": size, "MASTER_ADDR": plan.places[0].host, "DEVICE_ID": "0", VARIABLE: invitation}
        num_threads = max(1, int(plan.resources.get("CPU", 1)))
        self._runs = {
            actor.run.remote(content, rank, given, port, num_threads): rank for rank, actor in enumerate(self._actors)
        }
        self._complaints: list[str] = []

    def poll(self) -> int | None:
        import ray

        if self._runs and not self._complaints:
            ready, _ = ray.wait(list(self._runs), num_returns=len(self._runs), timeout=0)
            for each in ready:
                self._take(self._runs.pop(each), each)
            self._require_started()
        return STATUS if self._complaints else None if self._runs else 0

    def kill(self) -> None:
        import ray

        for actor in self._actors:
            ray.kill(actor)

    def close(self) -> str:
        self.kill()
        return "\n".join(self._complaints)

    def _require_started(self) -> None:
        """Complains of an actor that has not started in time: Ray itself tries again and again."""
        import ray

        if self._starts:
            started, _ = ray.wait(list(self._starts), num_returns=len(self._starts), timeout=0)
            for each in started:
                self._starts.pop(each)
        if self._starts and not self._complaints and time.monotonic() > self._deadline:
            place = next(iter(self._starts.values()))
            self._complaints.append(
                f"The actor of rank {place.rank} on node {place.host} did not start within "
                f"{self._plan.start_seconds:g} s: Ray's lines that begin with (raylet) say why; if it only takes "
                "longer, raise start_timeout."
            )

    def _take(self, rank: int, run: Any) -> None:
        """Takes in what a rank returned, or why its actor failed."""
        import ray

        try:
            self._plan.results[rank] = ray.get(run)
        except ray.exceptions.RayError as error:
            place = self._plan.places[rank]
            self._complaints.append(f"The actor of rank {rank} on node {place.host} failed: {last_line(error)}")


def options(resources: Mapping[str, float]) -> dict[str, Any]:
    """What an actor asks for, by the names that Ray's options have."""
    own = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    found: dict[str, Any] = {own[name]: amount for name, amount in resources.items() if name in own}
    return {"num_cpus": 0, **found, "resources": {name: each for name, each in resources.items() if name not in own}}


def on_bundle(group: Any, bundle: int) -> Any:
    """Where an actor is to run."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)


def last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def places_of(group: Any) -> tuple[list[Place], list[int]]:
    """Where the bundles of a placement group are, those of a node side by side, and the index of each."""
    import ray

    nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
    addresses = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes()}
    order: Sequence[str] = list(dict.fromkeys(nodes[bundle] for bundle in sorted(nodes)))
    bundles = sorted(nodes, key=lambda bundle: (order.index(nodes[bundle]), bundle))
    return [Place(rank, addresses[nodes[bundle]]) for rank, bundle in enumerate(bundles)], bundles
