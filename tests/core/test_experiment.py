"""Experiments: which trials run, what becomes of them, and how the state comes back."""

from __future__ import annotations

import copy
import math

import pytest
from search_harness import SPACE, Search

from shoal import tune
from shoal._core import commands as do
from shoal._core import search as on
from shoal._core.events import PreemptionNotice, StopAsked, TimerFired
from shoal._core.experiment import BUDGET_GRACE, Experiment, SearchSpec
from shoal._core.trials import Searcher, TrialScheduler, TrialStatus
from shoal.tune.schedulers import (
    ASHAPromotionScheduler,
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    PopulationBasedTraining,
    ResourceChangingScheduler,
)
from shoal.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from shoal.tune.stopper import CombinedStopper, DictStopper, FunctionStopper, MaximumIterationStopper

DONE, ERROR, PAUSED, RUNNING, PENDING = (
    TrialStatus.TERMINATED,
    TrialStatus.ERROR,
    TrialStatus.PAUSED,
    TrialStatus.RUNNING,
    TrialStatus.PENDING,
)


def test_every_sample_runs_once_and_the_search_ends():
    search = Search(max_concurrent=2)
    assert len(search.running) == 2
    search.live(lambda trial, n: trial.config["x"])
    assert search.end.state == "FINISHED"
    assert search.statuses == [DONE] * 4
    assert len({trial.config["x"] for trial in search.machine.table.get_trials()}) == 4


def test_no_more_trials_run_than_there_is_room_for():
    search = Search()
    assert len(search.running) == 4
    small = Search(max_concurrent=3)
    assert len(small.running) == 3
    small.see(on.RoomChanged(trials=1))
    small.ends(0)
    assert len(small.running) == 2


def test_a_search_that_goes_on_in_another_process_has_its_trials_save_what_they_have():
    search = Search()
    search.see(PreemptionNotice(reason="the job is taken back", grace=60.0))
    search.see(PreemptionNotice(reason="the job is taken back", grace=60.0))
    assert [command.grace for command in search.all(on.StopTrial)] == [60.0] * 4
    for number in range(4):
        search.ends(number, completed=number == 0)
    assert search.end.state == "STOPPED"
    assert search.end.reason == "the job is taken back"
    assert [status.name for status in search.statuses] == ["TERMINATED", "PAUSED", "PAUSED", "PAUSED"]


def test_machines_that_come_are_counted():
    search = Search(num_samples=8, max_concurrent=4)
    search.see(on.RoomChanged(trials=2))
    search.ends(0)
    search.ends(1)
    assert len(search.running) == 2
    search.see(on.RoomChanged(trials=4, resources={"CPU": 4.0}))
    assert len(search.running) == 4
    assert search.machine.table.total_resources == {"CPU": 4.0}


def test_nothing_is_started_before_the_search_begins():
    searcher = BasicVariantGenerator(random_state=1)
    searcher.set_search_properties("m", "max", SPACE, num_samples=4)
    machine = Experiment(SearchSpec(search_id="s"), searcher, FIFOScheduler(), None)
    assert machine.handle(on.RoomChanged(trials=2), 0.0) == []


def test_a_trial_that_waits_for_room_is_the_only_one():
    class Unplaced(Search):
        def see(self, event):
            if not isinstance(event, on.TrialPlaced):
                super().see(event)

    assert len(Unplaced().running) == 1


def test_a_report_waits_only_where_somebody_decides():
    search = Search()
    search.report(0, 0.5)
    assert search.all(on.Decide) == []
    search = Search(ASHAScheduler())
    search.report(0, 0.5)
    assert search.all(on.Decide) == [on.Decide(trial_id="s_00000", n=1)]


def test_a_stopped_trial_does_not_go_on_and_makes_room_when_its_process_is_gone():
    search = Search(ASHAScheduler(grace_period=1, reduction_factor=2, max_t=10), max_concurrent=2)
    assert search.report(0, 0.9) == ""
    assert search.report(1, 0.1) == "AsyncHyperBandScheduler"
    assert len(search.running) == 2
    search.ends(1, completed=False)
    assert search.trial(1).status is DONE
    assert set(search.running) == {"s_00000", "s_00002"}


def test_a_stopper_ends_trials_and_the_whole_search():
    search = Search(stopper=MaximumIterationStopper(2))
    search.live(lambda trial, n: 0.5)
    assert [trial.reports for trial in search.machine.table.get_trials()] == [2] * 4

    class Enough(FunctionStopper):
        def stop_all(self) -> bool:
            return True

    search = Search(stopper=CombinedStopper(DictStopper({"m": 2}), Enough(lambda trial_id, row: False)))
    search.report(0, 0.5)
    assert [command.trial_id for command in search.all(on.StopTrial)] == [f"s_0000{n}" for n in range(4)]
    for number in range(4):
        search.ends(number, completed=False)
    assert search.end.state == "FINISHED"
    assert "CombinedStopper" in search.end.reason


def test_a_failed_trial_does_not_end_the_search_unless_that_was_asked():
    search = Search(max_concurrent=1)
    search.ends(0, completed=False, error="ValueError: bad")
    assert search.trial(0).status is ERROR
    assert search.trial(0).error == "ValueError: bad"
    assert list(search.running) == ["s_00001"]
    search = Search(max_concurrent=2, fail_fast=True)
    search.ends(0, completed=False, error="ValueError: bad")
    assert search.all(on.StopTrial)[0].trial_id == "s_00001"
    search.ends(1, completed=False)
    assert search.end.state == "FAILED"
    assert search.statuses == [ERROR, PAUSED]


def test_the_time_budget_ends_trials_in_the_middle_and_kills_those_that_do_not_report():
    search = Search(num_samples=-1, max_concurrent=2, time_budget=60.0)
    assert search.all(do.SetTimer)[0].at == pytest.approx(60.0, abs=0.1)
    search.report(0, 0.5)
    search.see(TimerFired(name="budget"))
    assert [(c.trial_id, c.kill) for c in search.all(on.StopTrial)] == [("s_00000", False), ("s_00001", False)]
    search.ends(0, completed=False)
    search.now += BUDGET_GRACE
    search.see(TimerFired(name="budget grace"))
    assert [(c.trial_id, c.kill) for c in search.all(on.StopTrial)][2:] == [("s_00001", True)]
    search.ends(1, completed=False)
    assert (search.end.state, search.end.reason) == ("FINISHED", "time_budget_s=60 is over")
    assert search.statuses == [DONE, DONE]


def test_ctrl_c_leaves_trials_to_be_gone_on_with():
    search = Search(max_concurrent=2)
    search.report(0, 0.5)
    search.see(StopAsked(reason="Ctrl-C"))
    search.ends(0, completed=False)
    search.ends(1, completed=False)
    assert search.end.state == "STOPPED"
    again = Search(records=search.journal, max_concurrent=2)
    assert list(again.running.items()) == [("s_00000", 1), ("s_00001", 0)]
    again.live(lambda trial, n: 0.5)
    assert again.statuses == [DONE] * 4


def test_a_metric_that_nobody_reports_is_named_at_once_and_ends_the_search_with_its_first_trial():
    search = Search(metric="acuracy", max_concurrent=1)
    search.report(0, 0.5, accuracy=1.0)
    (warning,) = search.all(do.Say)
    assert warning.level == "warning"
    assert "acuracy" in warning.text
    assert "accuracy, m" in warning.text
    assert "Did you mean 'accuracy'?" in warning.text
    search.ends(0)
    assert search.end.state == "FAILED"
    assert "in no report of trial s_00000" in search.end.reason


def test_a_metric_that_only_some_reports_have_is_decided_by_where_it_is():
    seen = []

    class Notes(TrialScheduler):
        def on_trial_result(self, tune_controller, trial, result):
            seen.append(result["m"])
            return self.CONTINUE

    search = Search(Notes(), max_concurrent=1)
    search.see(on.TrialReported(trial_id="s_00000", n=1, row={"loss": 1.0}))
    search.running["s_00000"] = 1
    search.report(0, math.nan)
    search.report(0, 0.5)
    assert [str(value) for value in seen] == ["nan", "0.5"]
    search.ends(0)
    assert not search.machine.over


@pytest.mark.parametrize("method", ["on_trial_result", "choose_trial_to_run", "on_trial_complete"])
def test_what_a_scheduler_raises_ends_the_search_and_is_named(method):
    def broken(self, *arguments):
        raise RuntimeError("oops")

    broken.__name__ = method
    kind = type("Broken", (ASHAScheduler,), {method: broken})
    search = Search(kind(), max_concurrent=1)
    if search.running:
        search.report(0, 0.5)
        search.ends(0)
    assert search.end.state == "FAILED"
    assert f"Broken.{method} raised RuntimeError: oops" in search.end.reason
    assert method != "on_trial_result" or search.decided["s_00000", 1]  # the trial does not wait for ever
    assert isinstance(search.machine.failure.__cause__, RuntimeError)


def test_a_scheduler_that_lets_nobody_run_is_named_instead_of_waited_for():
    class Nobody(TrialScheduler):
        ahead = True

        def on_trial_result(self, tune_controller, trial, result):
            return self.CONTINUE

        def choose_trial_to_run(self, tune_controller):
            return None

    search = Search(Nobody())
    assert search.end.state == "FAILED"
    assert "lets none of the waiting trials run" in search.end.reason


def test_a_searcher_that_suggests_nothing_while_nothing_runs_ends_the_search():
    class Silent(Searcher):
        def suggest(self, trial_id):
            return None

        def on_trial_complete(self, trial_id, result=None, error=False):
            pass

    search = Search(searcher=Silent())
    assert search.end.state == "FINISHED"
    assert "Silent suggests nothing more" in search.all(do.Say)[0].text


def pbt(**settings):
    return PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=2,
        hyperparam_mutations={"x": tune.uniform(0, 1)},
        **settings,
    )


@pytest.mark.parametrize("synch", [False, True])
@pytest.mark.parametrize("concurrent", [1, 2, 4, 8])
def test_population_based_training_comes_to_its_end_whatever_the_concurrency(synch, concurrent):
    search = Search(pbt(synch=synch), num_samples=8, max_concurrent=concurrent)
    search.live(lambda trial, n: trial.config["x"] * n, length=9)
    assert search.statuses == [DONE] * 8
    assert {trial.reports for trial in search.machine.table.get_trials()} == {9}
    clones = search.all(on.Adopt)
    assert clones
    sources = {trial.trial_id for trial in search.machine.table.get_trials()}
    assert all(clone.source_id in sources and clone.source_id != clone.trial_id for clone in clones)


def test_nobody_is_cloned_from_a_trial_without_a_checkpoint():
    search = Search(pbt(), num_samples=4)
    search.live(lambda trial, n: trial.config["x"] * n, length=9, saved=False)
    assert search.all(on.Adopt) == []
    assert search.statuses == [DONE] * 4


def test_a_clone_waits_until_the_checkpoint_of_its_source_is_stored():
    search = Search(pbt(synch=True), num_samples=2)
    for n in range(1, 3):
        for number, value in ((0, 0.9), (1, 0.1)):
            stop = search.report(number, value * n, saved=True)
    assert stop
    search.ends(1, completed=False)
    search.see(on.TrialSaved(trial_id="s_00000", n=1))
    assert search.all(on.Adopt) == []  # trial 0 is still storing
    search.see(on.TrialSaved(trial_id="s_00000", n=2))
    assert search.all(on.Adopt) == [on.Adopt(trial_id="s_00001", source_id="s_00000", n=2)]


def exploited_while_the_source_runs():
    """Trial 1 is to go on from the second checkpoint of trial 0, which is being stored."""
    search = Search(pbt(), num_samples=2)
    for n in range(1, 3):
        for number, value in ((0, 0.9), (1, 0.1)):
            search.report(number, value * n, saved=True)
    search.ends(1, completed=False)
    assert search.all(on.Adopt) == []
    return search


def test_a_clone_goes_on_from_what_was_decided_also_when_its_source_has_stored_more():
    search = exploited_while_the_source_runs()
    search.report(0, 2.7, saved=True)
    search.see(on.TrialSaved(trial_id="s_00000", n=3))
    assert search.all(on.Adopt) == [on.Adopt(trial_id="s_00001", source_id="s_00000", n=2)]


@pytest.mark.parametrize("how", ["restarted", "failed", "does not save"])
def test_a_clone_does_not_wait_for_a_checkpoint_that_never_comes(how):
    search = exploited_while_the_source_runs()
    if how == "restarted":
        search.see(on.TrialRestarted(trial_id="s_00000"))
    elif how == "failed":
        search.ends(0, error="bad")
    else:  # it said what it would do if it was to stop, and was not
        search.see(on.TrialReported(trial_id="s_00000", n=2, row=dict(search.trial(0).last_result), saved=False))
    assert search.all(on.Adopt) == [on.Adopt(trial_id="s_00001", source_id="s_00000", n=2)]


def test_a_restored_search_clones_from_what_was_decided_before():
    search = exploited_while_the_source_runs()
    again = Search(pbt(), records=search.journal, num_samples=2)
    assert again.all(on.Adopt) == [on.Adopt(trial_id="s_00001", source_id="s_00000", n=2)]


def test_a_clone_that_was_started_and_has_not_reported_is_given_its_checkpoint_again():
    search = exploited_while_the_source_runs()
    search.see(on.TrialSaved(trial_id="s_00000", n=2))
    assert search.journal[-1] == on.TrialStarted(trial_id="s_00001", at=search.journal[-1].at)
    again = Search(pbt(), records=search.journal, num_samples=2)  # the driver died before it had copied anything
    assert again.all(on.Adopt) == [on.Adopt(trial_id="s_00001", source_id="s_00000", n=2)]
    again.report(1, 0.3, saved=True)
    later = Search(pbt(), records=again.journal, num_samples=2)
    assert later.all(on.Adopt) == []


def schedulers():
    return {
        "asha": lambda: ASHAScheduler(grace_period=1, reduction_factor=2, max_t=16),
        "pbt": lambda: pbt(seed=3),
        "pbt synch": lambda: pbt(synch=True, seed=3),
        "hyperband": lambda: HyperBandScheduler(max_t=9, reduction_factor=3),
        "promotion": lambda: ASHAPromotionScheduler(max_t=9, grace_period=1, reduction_factor=3),
    }


@pytest.mark.parametrize("name", list(schedulers()))
@pytest.mark.parametrize("cut", [0, 1, 2, 5, 10**6, *range(7, 200, 3)])
def test_a_search_that_was_killed_and_restored_decides_as_one_that_was_not(name, cut):
    def value(trial, n):
        return math.sin(trial.config["x"] * 50) * n

    settings = {"num_samples": 12, "max_concurrent": 1}
    whole = Search(schedulers()[name](), **settings)
    whole.live(value, length=20)
    # What a driver has done when it is killed is a beginning of its journal.
    again = Search(schedulers()[name](), records=whole.journal[:cut], **settings)
    if not again.machine.over:
        again.live(value, length=20)
    assert decisions(again) == decisions(whole)
    assert [t.config for t in again.machine.table.get_trials()] == [t.config for t in whole.machine.table.get_trials()]
    assert set(again.statuses) == {DONE}


def decisions(search):
    return {(r.trial_id, r.n): (r.verdict, r.row["m"]) for r in search.journal if isinstance(r, on.TrialResult)}


def test_reports_that_a_trial_makes_again_after_a_restart_are_not_decided_again():
    search = Search(ASHAScheduler(max_t=100, grace_period=1, reduction_factor=2), max_concurrent=1)
    search.report(0, 0.5)
    search.report(0, 0.6)
    search.running["s_00000"] = 0
    before = len(search.journal)
    assert search.report(0, 0.1) == ""
    assert search.report(0, 0.1) == ""
    assert len(search.journal) == before
    assert search.trial(0).last_result["m"] == 0.6


def failed_search():
    search = Search(max_concurrent=1)
    search.report(0, 0.5)
    search.ends(0)
    search.report(1, 0.5)
    search.ends(1, completed=False, error="bad")
    search.report(2, 0.5)
    return search.journal


def test_finished_trials_stay_finished_unfinished_ones_go_on_and_failed_ones_are_left():
    search = Search(records=failed_search(), max_concurrent=1)
    assert dict(search.running) == {"s_00002": 1}
    search.live(lambda trial, n: 0.5)
    assert search.statuses == [DONE, ERROR, DONE, DONE]


def test_failed_trials_can_go_on_or_begin_anew():
    search = Search(records=failed_search(), resumption=on.Resumption(errored=True), max_concurrent=4)
    assert dict(search.running) == {"s_00001": 1, "s_00002": 1, "s_00003": 0}
    search = Search(records=failed_search(), resumption=on.Resumption(restart_errored=True), max_concurrent=4)
    assert dict(search.running) == {"s_00001": 0, "s_00002": 1, "s_00003": 0}
    assert next(c for c in search.all(on.StartTrial) if c.trial_id == "s_00001").anew


def test_unfinished_trials_can_be_left():
    search = Search(records=failed_search(), resumption=on.Resumption(unfinished=False), max_concurrent=4)
    assert dict(search.running) == {"s_00003": 0}
    assert search.trial(2).status is DONE


def test_a_restored_search_does_not_run_more_trials_than_it_was_asked_for():
    search = Search(ASHAScheduler(), max_concurrent=2, num_samples=5)
    search.live(lambda trial, n: 0.5)
    again = Search(ASHAScheduler(), records=search.journal, max_concurrent=2, num_samples=5)
    assert again.end.state == "FINISHED"
    assert len(again.statuses) == 5


def test_a_limited_searcher_is_asked_again_when_a_trial_ends():
    from shoal.tune.search import BasicVariantGenerator

    search = Search(searcher=ConcurrencyLimiter(BasicVariantGenerator(random_state=1), 2), num_samples=6)
    assert len(search.running) == 2
    search.live(lambda trial, n: 0.5)
    assert search.statuses == [DONE] * 6


def test_the_best_is_told_and_never_is_nan():
    search = Search()
    search.report(0, math.nan)
    search.report(1, 0.3)
    search.report(2, 0.7)
    search.report(2, 0.1)
    assert search.machine.best is search.trial(2)
    assert search.machine.best_value == 0.7


def test_what_is_in_the_journal_is_plain_and_objects_come_back_from_the_searcher():
    class Net:
        pass

    nets = [Net(), Net()]
    space = {"net": tune.choice(nets), "x": tune.uniform(0, 1)}
    search = Search(space=space)
    created = [record for record in search.journal if isinstance(record, on.TrialCreated)]
    assert all(not record.plain and isinstance(record.config["net"], str) for record in created)
    again = Search(space=space, records=copy.deepcopy(search.journal))
    assert [t.config for t in again.machine.table.get_trials()] == [t.config for t in search.machine.table.get_trials()]


# ---- schedulers that pause ------------------------------------------------------------------------------------------


def hyperband_by_the_paper(values, count, max_t, eta):
    """Successive halving of each bracket of Li et al. (2018), for trials whose value at time t is ``values(i, t)``."""
    top = math.floor(math.log(max_t, eta) + 1e-9)
    ends, number = {}, 0
    while number < count:
        for s in range(top, -1, -1):
            size = math.ceil((top + 1) / (s + 1) * eta**s - 1e-9)
            members = list(range(number, min(number + size, count)))
            number += len(members)
            time = max_t * eta**-s
            while members:
                for member in members:
                    ends[member] = time
                if time >= max_t:
                    break
                members.sort(key=lambda member, time=time: -values(member, time))
                members = members[: max(1, len(members) // eta)]
                time *= eta
    return ends


@pytest.mark.parametrize("concurrent", [1, 2, 5, 50])
@pytest.mark.parametrize("count", [3, 10, 22, 40])
def test_hyperband_decides_as_published_and_ends_whatever_the_concurrency(concurrent, count):
    def value(number, time):
        return math.sin(number * 12.9898 + 3) * time

    search = Search(HyperBandScheduler(max_t=9, reduction_factor=3), num_samples=count, max_concurrent=concurrent)
    search.live(lambda trial, n: value(int(trial.trial_id[2:]), n), length=30)
    assert search.statuses == [DONE] * count
    ended = {int(trial.trial_id[2:]): trial.reports for trial in search.machine.table.get_trials()}
    assert ended == hyperband_by_the_paper(value, count, 9, 3)


def test_hyperband_does_not_wait_for_trials_that_have_ended_by_themselves_or_failed():
    search = Search(HyperBandScheduler(max_t=9, reduction_factor=3), num_samples=9, max_concurrent=9)
    for number in range(7):
        search.report(number, number, saved=True)
        search.ends(number, completed=False)
    search.ends(7)
    assert len(search.running) == 1
    search.ends(8, completed=False, error="bad")
    assert set(search.running) == {"s_00005", "s_00006"}


def test_a_population_without_an_end_is_refused():
    search = Search(pbt(), num_samples=-1, time_budget=10.0)
    assert search.end.state == "FAILED"
    assert "give num_samples" in search.end.reason


@pytest.mark.parametrize("concurrent", [1, 3])
def test_promotion_lets_the_best_of_each_rung_go_on(concurrent):
    search = Search(
        ASHAPromotionScheduler(max_t=9, grace_period=1, reduction_factor=3), num_samples=27, max_concurrent=concurrent
    )
    search.live(lambda trial, n: trial.config["x"] * n, length=20)
    assert search.statuses == [DONE] * 27
    counts = [sum(trial.reports >= rung for trial in search.machine.table.get_trials()) for rung in (1, 3, 9)]
    assert counts[0] == 27
    assert counts[1] >= 9
    assert counts[2] >= 3
    # Whoever was promoted was among the best third of its rung at that time, so the very best one always is.
    best = max(search.machine.table.get_trials(), key=lambda trial: trial.config["x"])
    assert best.reports == 9


def test_promotion_by_hand():
    search = Search(
        ASHAPromotionScheduler(max_t=9, grace_period=1, reduction_factor=3), num_samples=6, max_concurrent=1
    )
    for number, value in ((0, 0.5), (1, 0.9)):
        assert search.report(number, value, saved=True)
        search.ends(number, completed=False)
    assert list(search.running) == ["s_00002"]  # of two, a third is none: a new one
    search.report(2, 0.1, saved=True)
    search.ends(2, completed=False)
    assert list(search.running) == ["s_00001"]  # the best of three is promoted
    search.report(1, 0.9, saved=True)
    assert search.report(1, 0.9, saved=True)  # at 3, the next rung
    search.ends(1, completed=False)
    assert list(search.running) == ["s_00003"]


def test_resources_change_while_a_trial_is_paused():
    def allocate(controller, trial, result, scheduler):
        return {"CPU": 2.0} if result["training_iteration"] == 2 else None

    search = Search(ResourceChangingScheduler(resources_allocation_function=allocate), num_samples=1)
    assert search.report(0, 0.5, saved=True) == ""
    assert search.report(0, 0.5, saved=True) == "ResourceChangingScheduler"
    assert search.trial(0).resources == {"CPU": 2.0}
    search.ends(0, completed=False)
    assert search.running == {"s_00000": 2}
    again = Search(
        ResourceChangingScheduler(resources_allocation_function=allocate), num_samples=1, records=search.journal
    )
    assert again.trial(0).resources == {"CPU": 2.0}


def test_all_share_the_machine_evenly_by_default():
    search = Search(ResourceChangingScheduler(), num_samples=2)
    search.machine.table.total_resources = {"CPU": 8.0}
    search.report(0, 0.5, saved=True)
    assert search.trial(0).resources == {"CPU": 4.0}
    search.ends(1)
    search.ends(0, completed=False)
    search.report(0, 0.5, saved=True)
    assert search.trial(0).resources == {"CPU": 8.0}
