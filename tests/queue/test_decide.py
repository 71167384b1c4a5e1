"""From what an attempt came to, to what becomes of its task: each outcome."""

from __future__ import annotations

import pytest

from treadle.kernel.queue.decide import BACK_OFF_FOR, TAKEOVER_LIMIT, failure, fingerprint, refusal, settle_refused, settlement
from treadle.kernel.store.units import Finish, Requeue
from treadle.model.errors import InvalidPayload, PayloadTooLarge
from treadle.model.outcomes import RELEASED_FOR, Failed, Paused, Problem, Released, Retry, Succeeded, Waiting
from treadle.model.retry import NO_RETRY, RetryPolicy
from treadle.model.states import TASK, BlockReason
from treadle.model.tasks import Task
from treadle.model.values import decode

THREE_RETRIES = RetryPolicy(retries=3)
PROBLEM = Problem("boom", "It broke.", "ValueError", "Traceback ...")


def a_task(**fields) -> Task:
    values = {"attempt": 3, "failures": 1, "takeovers": 2, "checkpoint": '{"at":1}', "owner_id": "o", "claimed_at": 1_000}
    return Task(id="t", queue_id=1, **values | fields)


def test_success_finishes_the_task_with_its_result():
    assert settlement(a_task(), Succeeded({"a": 1}), NO_RETRY) == Finish("succeed", "completed", result='{"a":1}')
    assert settlement(a_task(), Succeeded(), NO_RETRY) == Finish("succeed", "completed", result="{}")


def test_a_result_that_cannot_be_stored_raises():
    with pytest.raises(InvalidPayload, match="result"):
        settlement(a_task(), Succeeded({"a": float("nan")}), NO_RETRY)
    with pytest.raises(PayloadTooLarge, match="result"):
        settlement(a_task(), Succeeded({"a": "x" * 100}), NO_RETRY, result_limit=50)
    assert settlement(a_task(), Succeeded({"a": "x" * 10}), NO_RETRY, result_limit=50)


def test_a_permanent_failure_finishes_the_task_despite_its_retry_policy():
    settled = settlement(a_task(), Failed(PROBLEM), THREE_RETRIES)
    assert isinstance(settled, Finish)
    assert (settled.transition, settled.state, settled.error_code, settled.result) == ("fail", "failed", "boom", None)
    assert decode(settled.error) == {
        "code": "boom",
        "message": "It broke.",
        "type": "ValueError",
        "traceback": "Traceback ...",
    }
    assert settled.fingerprint == fingerprint(PROBLEM)
    assert settled == failure(PROBLEM)


@pytest.mark.parametrize(("failures", "delay_for"), [(0, 1_000), (1, 2_000), (2, 4_000)])
def test_a_retry_follows_the_policy_and_counts_a_failure_and_an_attempt(failures, delay_for):
    task = a_task(failures=failures)
    settled = settlement(task, Retry(PROBLEM), THREE_RETRIES)
    assert isinstance(settled, Requeue)
    assert (settled.transition, settled.state, settled.delay) == ("retry", "pending", delay_for)
    assert (settled.attempt, settled.failures, settled.takeovers) == (4, failures + 1, 0)
    assert (settled.checkpoint, settled.blocked_by) == ('{"at":1}', 0)
    assert decode(settled.error)["code"] == decode(settled.data)["code"] == "boom"


def test_when_the_retries_are_used_up_the_task_fails():
    assert settlement(a_task(failures=3), Retry(PROBLEM), THREE_RETRIES) == failure(PROBLEM)
    assert settlement(a_task(failures=0), Retry(PROBLEM), NO_RETRY) == failure(PROBLEM)
    assert settlement(a_task(failures=3), Retry(PROBLEM, after_for=5), THREE_RETRIES) == failure(PROBLEM)


def test_a_handler_may_choose_its_retry_time():
    assert settlement(a_task(), Retry(PROBLEM, after_for=700), THREE_RETRIES).delay == 700
    assert settlement(a_task(failures=0), Retry(PROBLEM, after_for=7), THREE_RETRIES).delay == 7
    assert settlement(a_task(failures=0), Retry(PROBLEM, after_for=0), THREE_RETRIES).delay is None


def test_a_retry_without_delay_is_ready_immediately():
    assert settlement(a_task(failures=0), Retry(PROBLEM), RetryPolicy(retries=1, first_for=0)).delay is None


@pytest.mark.parametrize("outcome", [Retry(PROBLEM), Retry(PROBLEM, after_for=0), Retry(PROBLEM, after_for=7)])
def test_no_retry_after_the_first_one_repeats_more_than_ten_times_a_second(outcome: Retry):
    policy = RetryPolicy(retries=5, first_for=0)
    assert settlement(a_task(failures=1), outcome, policy).delay == 100
    assert settlement(a_task(failures=1), Retry(PROBLEM, after_for=101), policy).delay == 101


def test_jitter_uses_the_random_source():
    policy = RetryPolicy(retries=5, jitter=0.5)
    assert settlement(a_task(failures=0), Retry(PROBLEM), policy, jitter_fraction=1.0).delay == 500


def test_waiting_requeues_the_task_without_counting_anything():
    settled = settlement(a_task(), Waiting(5_000), NO_RETRY)
    assert settled == Requeue("wait", "pending", 3, 1, 0, delay=5_000, checkpoint='{"at":1}')


def test_waiting_may_leave_a_checkpoint():
    assert settlement(a_task(), Waiting(1, {"at": 2}), NO_RETRY).checkpoint == '{"at":2}'
    assert settlement(a_task(), Waiting(0, {"at": 2}), NO_RETRY).delay is None


def test_a_zero_wait_without_progress_lasts_a_second():
    assert settlement(a_task(), Waiting(0), NO_RETRY).delay == RELEASED_FOR
    assert settlement(a_task(), Waiting(0, {"at": 1}), NO_RETRY).delay == RELEASED_FOR


@pytest.mark.parametrize("state", ["pending", "awaiting_external", "awaiting_approval"])
def test_pausing_keeps_the_state_of_the_task(state):
    settled = settlement(a_task(state=state, blocked_by=BlockReason.OVER_LIMIT), Paused("lunch"), NO_RETRY)
    assert (settled.transition, settled.state, settled.delay) == ("pause", state, None)
    assert settled.blocked_by == BlockReason.OVER_LIMIT | BlockReason.TASK_PAUSED
    assert (settled.attempt, settled.failures, settled.checkpoint) == (3, 1, '{"at":1}')
    assert decode(settled.data) == {"reason": "lunch"}


def test_a_released_execution_was_an_attempt_but_no_failure_and_no_takeover():
    settled = settlement(a_task(error='{"code":"e"}'), Released(), NO_RETRY)
    assert (settled.transition, settled.state, settled.delay) == ("release", "pending", RELEASED_FOR)
    assert settlement(a_task(), Released(after_for=0), NO_RETRY).delay is None
    assert (settled.attempt, settled.failures, settled.takeovers) == (4, 1, 2)
    assert (settled.checkpoint, settled.error) == ('{"at":1}', '{"code":"e"}')


def test_a_released_poll_was_no_attempt():
    settled = settlement(a_task(state="awaiting_external"), Released(), NO_RETRY)
    assert (settled.state, settled.attempt) == ("awaiting_external", 3)


OUTCOMES = [Succeeded(), Failed(PROBLEM), Retry(PROBLEM), Retry(PROBLEM, 0), Waiting(1), Waiting(0), Paused("x"), Released()]


@pytest.mark.parametrize("policy", [NO_RETRY, THREE_RETRIES], ids=["no_retry", "dispatch"])
@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_every_settlement_is_a_transition_of_the_state_table(outcome, policy):
    settled = settlement(a_task(), outcome, policy)
    assert TASK.target("pending", settled.transition) == settled.state


# --- errors as they are stored ---


def test_an_unstorable_error_is_made_storable():
    settled = failure(Problem("boom", "a\x00b \ud800 " + "x" * 200_000))
    stored = decode(settled.error)
    assert "\x00" not in stored["message"]
    assert stored["message"].startswith("a\\0b")
    assert len(stored["message"]) <= 64 * 1024 + 1
    settled.error.encode("utf-8")


def test_a_fingerprint_groups_errors_that_differ_in_numbers_ids_and_names():
    def of(message, code="boom", kind="E"):
        return fingerprint(Problem(code, message, kind))

    assert of("row 17 of 'a.csv' at 0x7f00") == of("row 18 of 'b.csv' at 0x7f99")
    assert of("no task 0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a77") == of("no task 0198c3de-7a10-7c3e-b2a4-5d1f0c9e8a78")
    assert of("disk full") != of("disk empty")
    assert of("x", code="a") != of("x", code="b")
    assert of("x", kind="A") != of("x", kind="B")
    assert len(of("\ud800")) == 16


# --- what must not be executed ---


def test_a_task_in_time_is_not_refused():
    assert refusal(a_task()) is None
    assert refusal(a_task(deadline_at=1_001, takeovers=TAKEOVER_LIMIT - 1)) is None


def test_a_task_past_its_deadline_is_refused():
    problem = refusal(a_task(deadline_at=1_000))
    assert problem is not None
    assert problem.code == "deadline_exceeded"


def test_a_task_that_kills_its_workers_is_refused():
    problem = refusal(a_task(takeovers=TAKEOVER_LIMIT))
    assert problem is not None
    assert problem.code == "takeovers_exhausted"
    assert refusal(a_task(takeovers=TAKEOVER_LIMIT), takeover_limit=TAKEOVER_LIMIT + 1) is None


@pytest.mark.parametrize("kind", ["afl.advance", "engine.prune", "lock"])
def test_an_internal_task_is_never_abandoned_but_backs_off(kind):
    task = a_task(kind=kind, takeovers=TAKEOVER_LIMIT, checkpoint="7")
    problem = refusal(task)
    assert problem is not None
    refused = settle_refused(task, problem)
    assert isinstance(refused, Requeue)
    assert (refused.transition, refused.state, refused.delay, refused.takeovers, refused.checkpoint) == (
        "wait",
        task.state,
        BACK_OFF_FOR,
        0,
        "7",
    )
    assert "takeovers_exhausted" in (refused.error or "")


def test_a_handlers_task_that_loses_its_workers_is_a_dead_letter():
    task = a_task(takeovers=TAKEOVER_LIMIT)
    problem = refusal(task)
    assert problem is not None
    refused = settle_refused(task, problem)
    assert isinstance(refused, Finish)
    assert (refused.transition, refused.error_code) == ("fail", "takeovers_exhausted")
