"""Work with storage is done in order, and what is asked for again and again gets its turn."""

from __future__ import annotations

import json
import threading

from shoal._runtime.background import Background
from shoal._runtime.directory import opened, place_of
from shoal._runtime.rundir import RunFiles
from shoal._worker.remote import content


def test_what_is_asked_for_again_and_again_is_done_once_at_a_time_while_other_work_never_ends():
    background, gate, done = Background(threaded=True), threading.Event(), []
    background.do(gate.wait)
    for _ in range(3):
        background.do_once("copy", lambda: done.append("copy"))
    background.do(lambda: done.append("other"))
    gate.set()
    background.close()
    background.follow_up()
    assert done == ["copy", "other"]
    background = Background(threaded=False)
    for _ in range(2):
        background.do_once("copy", lambda: done.append("again"))
    assert done[2:] == ["again", "again"]


def test_what_people_look_at_is_copied_also_while_checkpoints_are_being_stored():
    place = place_of("memory://busy", "run")
    with opened(place, "run", False) as home:
        files, gate = RunFiles(home, {}), threading.Event()
        (home.work / "status.json").write_text(json.dumps({"attempt": 1}))
        files.later(gate.wait)
        files.refresh()
        files.later(lambda: None)  # there is always a checkpoint on its way
        gate.set()
        files.background.close()
        assert json.loads(content(place / "status.json")) == {"attempt": 1}
