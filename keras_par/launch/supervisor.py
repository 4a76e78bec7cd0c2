"""Starts a job's ranks once, watches them through their agents, and ends all of them when one fails or hangs."""

import math
import signal
import time

from keras_par.agent import wire
from keras_par.agent.cleanup import remove_session
from keras_par.agent.states import Exit, State, state_of
from keras_par.launch import verdict
from keras_par.launch.culprit import first_failure
from keras_par.launch.engines import Plan
from keras_par.launch.hang_watch import HangWatch
from keras_par.launch.job import Job
from keras_par.launch.members import Ending, Member, Members
from keras_par.launch.next_world import Watch
from keras_par.launch.reception import Reception, Silence
from keras_par.launch.switchboard import Line
from keras_par.launch.verdict import Outcome

TICK_SECONDS = 0.2
LOOK_SECONDS = 0.05  # whether all are gone
PAUSE_SECONDS = 5e-6  # for each rank, to hear several at once
LOOKS = 10_000.0  # at ranks, a second
GRACE_SECONDS = 6.0  # from a failure, for the others to hear of it and end by themselves
ENDING_SECONDS = 60.0  # the same, after the user has asked for the end: some rank may be saving
STAY_SECONDS = 15.0  # from the end of a script that failed or was interrupted, for its process to end
TERM_SECONDS = 20.0  # from SIGTERM, for ranks to end that come to no step; schedulers kill after 30 seconds
DEAF_SECONDS = 1.0  # the same, where no rank has come to kp.init() and so none can hear
NAMED_SECONDS = 3.0  # from a failure, until it is named though other ranks are still there
CHANGE_SECONDS = 5.0  # from one try to stop all ranks for another world to the next
RESULT_SECONDS = 60.0  # for an engine to end, which may carry results, once all ranks have ended well
END_SECONDS = 3.0  # from one step of ending ranks to the next harder one
HANG_STATUS = 124  # as timeout(1) has it
VANISHED_STATUS = 1
REFUSED_STATUS = 1


class Supervisor:
    """One attempt of a job.

    Args:
        plan: how it is started.
        job: that it is of.
        watch: of the hosts, None where the job keeps its ranks.
        may_go_on: True if the job is started again after a failure.
    """

    def __init__(self, plan: Plan, job: Job, watch: Watch | None, may_go_on: bool):
        self._plan, self._job, self._folder, self._console = plan, job, job.folder, job.console
        self._interrupts, self._num_seen, self._account, self._watch = job.interrupts, 0, job.account, watch
        self._may_go_on = may_go_on
        self._members = Members()
        self._reception = Reception(plan, job, self._members)
        self._switchboard = self._reception.switchboard
        self._hang_watch = HangWatch(self._members, job)
        self._ending: Ending | None = None
        self._change: str | None = None  # why all ranks stop for another world
        self._next_change = 0.0  # when that may be tried again
        self._deadline: float | None = None  # when ranks that are left are ended, the harder way the next time
        self._ordered: float | None = None  # when they were first told to end
        self._failed: float | None = None  # when a failure became known that is not named yet
        self._looked = time.monotonic()  # at all ranks
        self._interrupted = 0.0  # when the user's signal was seen
        self._has_hung = self._has_lost_engine = False
        self._stopped = self._checkpoint = ""  # where all ranks stopped for the user; the newest complete checkpoint
        self._silence = Silence(plan, self._members, watch)
        self._lost_at_start: tuple[str, ...] = ()

    def run(self) -> Outcome:
        """How it ended, once all ranks and the engine that started them are gone."""
        self._engine = self._plan.start(self._switchboard.invitation)
        try:
            while not self._is_over():
                self._react()
                self._look_around()
            has_failed = any(end.is_failure for end in self._members.ended.values())
            is_wanted = self._num_seen or self._has_changed  # the end, before which the disk has got a checkpoint
            self._members.dismiss(has_failed, keeps_memory=self._may_go_on and has_failed and not is_wanted)
            self._see_off(END_SECONDS if has_failed else RESULT_SECONDS)
        finally:
            self._kill_engine()
            self._switchboard.close()
        return self._conclude(self._engine.close())

    def _react(self) -> None:
        """Handles the messages that come within TICK_SECONDS."""
        deadline = time.monotonic() + TICK_SECONDS
        while (rest := deadline - time.monotonic()) > 0 and not self._is_over():
            for line, message in self._reception.hear(rest):
                if line.rank is not None:
                    self._hear(line.rank, message)
                elif message is not None:
                    self._welcome(line, message)
            time.sleep(PAUSE_SECONDS * len(self._members.running))

    def _welcome(self, line: Line, hello: wire.Message) -> None:
        if not self._reception.welcome(line, hello):
            return None if self._is_terminating else self._end_ranks("kill")
        if self._is_terminating:
            line.send({"terminate": True})
        if self._is_complete:
            self._describe()

    def _hear(self, rank: int, message: wire.Message | None) -> None:
        member = self._members.of_rank[rank]
        member.heard = time.monotonic()
        if message is None:
            self._note_vanished(rank, member)
        elif "state" in message:
            member.state, member.told = state_of(rank, message["state"]), member.heard
            self._account.note_steps(member.state.steps, time.time())
        elif "exit" in message:
            self._note_end(Exit(**message["exit"]).by_clock_ahead(member.ahead))
        elif "stacks" in message:
            self._hang_watch.stacks[rank] = message["stacks"]
        elif "unanswered" in message:
            self._hang_watch.connections.note(member.host, message["unanswered"])
        elif "paused" in message and self._ending is not None:
            self._ending.note_pause(rank, message["paused"])
        elif "warning" in message:
            self._console.say(f"rank {rank}: {message['warning']}")
            self._folder.event("warning", message["warning"], rank)
        else:
            self._note(rank, member, message)

    def _note(self, rank: int, member: Member, message: wire.Message) -> None:
        """Takes in what a rank tells of its training."""
        [(kind, note)] = message.items()
        if kind == "first_step" and rank == 0:  # which told before that where it goes on from
            self._account.note_first_step(note["time"] - member.ahead)
        elif kind == "resume":
            lost = self._account.note_resume(note["name"])
            self._folder.event("resume", note["text"], rank, checkpoint=note["name"], steps_lost=lost)
        elif kind == "stopped":
            self._stopped = note["text"]
        elif kind == "checkpoint":
            if not note["in_memory"]:
                self._checkpoint = note["text"]
            self._account.note_checkpoint(note["name"], note["taken"] - member.ahead, note["steps"])

    def _note_vanished(self, rank: int, member: Member) -> None:
        if member.end is None:
            self._note_end(Exit(rank, member.host, VANISHED_STATUS, time.time(), has_vanished=True))

    def _note_end(self, end: Exit) -> None:
        self._members.note_end(end)
        self._account.note_steps(end.steps, end.time)
        if end.is_failure and self._deadline is None:
            is_calm = self._ending is not None and (self._change is None or end.is_interrupt)
            if not is_calm and not end.was_told:
                self._failed = time.monotonic()
            can_hear = any(member.state.has_joined for member in self._members.of_rank.values())
            since_failure = end.time - (end.failed or end.time)
            grace = max(DEAF_SECONDS, GRACE_SECONDS - since_failure) if can_hear else DEAF_SECONDS
            self._deadline = time.monotonic() + (ENDING_SECONDS if is_calm else grace)

    def _look_around(self) -> None:
        """Does what is due: what the user asked for, a look for hangs, the end of ranks that are left."""
        if len(self._interrupts) > self._num_seen:
            self._interrupt()
        self._look_for_another_world()
        if self._ending is not None:
            self._ending.decide()
        if self._failed is not None and time.monotonic() - self._failed > NAMED_SECONDS:
            self._failed = None
            self._name_failure()
        if time.monotonic() - self._looked >= len(self._members.running) / LOOKS:
            self._looked = time.monotonic()
            self._look_at_ranks()
        if self._engine.poll() is not None and self._deadline is None:
            self._has_lost_engine = bool(self._members.running)
            self._deadline = time.monotonic() + END_SECONDS
        if self._deadline is not None and time.monotonic() >= self._deadline:
            self._end_ranks("kill" if self._is_terminating else "terminate")

    def _look_at_ranks(self) -> None:
        """Looks at each rank: which is silent, and which hangs."""
        self._look_for_silence()
        self._look_for_stay()
        is_watched = self._is_complete and self._deadline is None
        if is_watched and self._hang_watch.look(self._ends_at_hang):
            self._has_hung = self._ending is None
            self._deadline = time.monotonic()

    def _look_for_silence(self) -> None:
        for rank, member in self._silence.look(self._ordered):
            self._note_vanished(rank, member)
        if not self._is_complete and not self._is_terminating:
            self._lost_at_start = self._silence.lost_at_start()
            if self._lost_at_start:
                self._end_ranks("kill")

    def _look_for_stay(self) -> None:
        """Ends ranks that have failed, or that their user wants to end, and do not end by themselves."""
        now = time.monotonic()
        members = list(self._members.running.values())
        if not self._is_terminating and (
            any(member.quiet(now) >= self._longest_stay(member.state) for member in members) or self._is_term_over(now)
        ):
            self._end_ranks("terminate")

    def _longest_stay(self, state: State) -> float:
        """How many seconds a rank may go on without progress."""
        if state.has_ended and (state.has_failed or self._num_seen):
            return STAY_SECONDS
        return max(self._job.hang_after, STAY_SECONDS) if state.has_failed else math.inf

    def _is_term_over(self, now: float) -> bool:
        """True if SIGTERM came long ago and ranks neither are on their way to a step nor have stopped after one."""
        is_term = (
            self._num_seen and self._interrupts[0] != signal.SIGINT and not self._stopped and self._deadline is None
        )
        if not is_term or now - self._interrupted < TERM_SECONDS:
            return False
        members = self._members.running.values()
        return any(each.state.call is None or each.quiet(now) >= TERM_SECONDS for each in members)

    def _look_for_another_world(self) -> None:
        """Lets all ranks stop after a step if another world should go on from there."""
        if self._ending is not None and self._ending.is_given_up:
            self._ending, self._change = Ending(self._members) if self._num_seen else None, None
            self._next_change = time.monotonic() + CHANGE_SECONDS
        is_free = self._is_complete and self._ending is None and self._deadline is None and not self._num_seen
        reason = None if self._watch is None else self._watch.reason
        if not is_free or reason is None or not self._account.has_checkpoint or time.monotonic() < self._next_change:
            return
        if all(member.state.call == "fit" for member in self._members.running.values()):
            self._change = reason
            self._ending = Ending(self._members, is_of_user=False)

    def _end_ranks(self, how: str) -> None:
        if self._ordered is None:
            self._ordered = time.monotonic()
        self._members.order(how)
        self._deadline = time.monotonic() + END_SECONDS

    def _interrupt(self) -> None:
        """The first time, lets all ranks stop after the same step; the second time, kills them."""
        is_first, self._num_seen = self._num_seen == 0, len(self._interrupts)
        self._interrupted = time.monotonic()
        if not is_first or self._is_terminating:
            return self._end_ranks("kill")
        self._console.say("stopping all ranks after the step under way; once more kills them at once")
        self._folder.event("interrupt", f"the user sent {signal.Signals(self._interrupts[0]).name}")
        if self._is_complete:
            self._ending = Ending(self._members) if self._ending is None else self._ending
        else:
            self._end_ranks("terminate")

    def _is_pressed(self) -> bool:
        """True if the user has asked more than once, or again since ranks were told."""
        return self._num_seen > 1 or len(self._interrupts) > self._num_seen

    @property
    def _ends_at_hang(self) -> bool:
        """True if a hang ends the job: the user said so, or has asked for the end and ranks have not come to it.

        Ranks that have come to it may be saving, however long that takes.
        """
        return self._job.aborts_hang if self._ending is None else not self._stopped

    @property
    def _has_changed(self) -> bool:
        """True if all ranks have stopped for another world, so far as they have ended."""
        first = first_failure(list(self._members.ended.values()))
        is_calm = first is None or first.is_interrupt or first.was_told
        return self._change is not None and self._stopped != "" and is_calm

    @property
    def _is_terminating(self) -> bool:
        """True once ranks were told to end."""
        return self._ordered is not None

    @property
    def _is_complete(self) -> bool:
        """True once all ranks have started."""
        return len(self._members.of_rank) == len(self._plan.places)

    def _is_over(self) -> bool:
        if self._members.running:
            return False
        is_terminating = self._is_terminating and not self._reception.turns_away
        return self._is_complete or self._engine.poll() is not None or is_terminating

    def _kill_engine(self) -> None:
        if self._engine.poll() is None:
            self._engine.kill()
            for session in {member.session for member in self._members.of_rank.values()}:
                remove_session(session)

    def _see_off(self, seconds: float) -> None:
        """Waits for the ends of the engine and, a moment later, of all agents, so that the next job is alone."""
        deadline = time.monotonic() + seconds
        while not self._is_pressed() and time.monotonic() < deadline:
            for _ in self._switchboard.hear(LOOK_SECONDS):
                pass
            left = (each for each in self._members.of_rank.values() if each.is_there and not each.channel.is_held)
            if self._engine.poll() is not None and not any(left):
                return

    def _describe(self) -> None:
        hosts = {str(rank): member.host for rank, member in sorted(self._members.of_rank.items())}
        self._folder.describe(hosts=hosts, num_ranks=len(hosts))
        text = f"{len(hosts)} rank(s) started on {len(set(hosts.values()))} host(s)"
        self._folder.event("start", text, num_ranks=len(hosts), hosts=sorted(set(hosts.values())))

    def _conclude(self, engine_output: str) -> Outcome:
        if self._reception.refusal is not None:
            rank, sentence = self._reception.refusal
            self._crash("the job did not start", [sentence])
            return Outcome(REFUSED_STATUS, sentence, refused=self._plan.places[rank].host)
        ended, num_ranks = self._members.ended, len(self._plan.places)
        first = first_failure(list(ended.values()))
        if self._num_seen:
            if first is not None:
                number, is_calm = self._interrupts[0], first.was_told or first.is_interrupt
                seen = first.place or "wherever it was"
                if is_calm or -first.status in self._interrupts:
                    self._console.say(verdict.interrupted(number, self._stopped, seen, self._checkpoint, not is_calm))
                else:
                    self._tell_failure(first)
            return Outcome(128 + self._interrupts[0] if first or len(ended) < num_ranks else 0, "its user ended it")
        if self._change is not None and self._has_changed:
            return Outcome(0, self._change, is_change=True)
        if self._has_hung:
            return Outcome(HANG_STATUS, "it hung")
        is_engines_fault = self._has_lost_engine and (first is None or first.was_told)
        is_incomplete = len(ended) < num_ranks and (first is None or not first.was_by_itself)
        if is_incomplete or is_engines_fault:
            return self._tell_engine_failure(engine_output)
        return Outcome(0, "it finished") if first is None else self._tell_failure(first)

    def _tell_failure(self, first: Exit) -> Outcome:
        """A rank has failed."""
        ended, place = self._members.ended, self._plan.places[first.rank]
        stacks = {first.rank: first.stack} if first.stack else {}
        self._crash(verdict.title(first, ended), verdict.lines(first, ended), first.rank, stacks)
        why = f"rank {first.rank} on host {first.host} {first.how()}"
        killed = place.host if first.status < 0 and not first.was_told else None
        return Outcome(first.shell_status, why, self._lost_hosts(), killed=killed)

    def _tell_engine_failure(self, output: str) -> Outcome:
        """What starts the ranks has ended by itself, or hosts were lost before all ranks had started."""
        status, program = self._engine.poll() or 1, self._engine.name
        num_ended, num_ranks = len(self._members.ended), len(self._plan.places)
        text = verdict.engine_ended(num_ended, num_ranks, program, status, output)
        self._crash(f"{program} has ended" if self._has_lost_engine else "the job did not start", text)
        lost = dict.fromkeys(self._lost_at_start) | self._lost_hosts()
        return Outcome(status if status > 0 else 128 - status, text[0], lost)

    def _crash(
        self, title: str, text: list[str], rank: int | None = None, stacks: dict[int, str] | None = None
    ) -> None:
        self._folder.event("crash", " ".join(text), rank, **{} if stacks is None else {"stacks": stacks})
        self._console.panel(title, text, stacks)

    def _name_failure(self) -> None:
        """Says who has failed first, while others are still there."""
        first, left = first_failure(list(self._members.ended.values())), len(self._members.running)
        if first is not None and left:
            rest = f"{left} other rank{' has' if left == 1 else 's have'} not ended yet"
            self._console.say(f"rank {first.rank} {first.how()}; {rest}, and will be ended")

    def _lost_hosts(self) -> dict[str, str | None]:
        vanished = [rank for rank, end in self._members.ended.items() if end.has_vanished]
        return {self._plan.places[rank].host: self._members.of_rank[rank].session for rank in vanished}
