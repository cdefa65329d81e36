"""Tell a webhook when a run fails, is started again, or ends: `python examples/notify.py http://localhost:8000/hook`."""

import json
import sys
import urllib.request

from shoal import train
from shoal.abc import Callback


class Webhook(Callback):
    """Posts what happened as JSON with a ``text``, which Slack, Mattermost and Teams show as it is."""

    def __init__(self, url):
        self.url, self.run = url, ""

    def on_run_start(self, name, path, **info):
        self.run = name

    def on_failure(self, attempt, cause, **info):
        self.post(f"{self.run}: attempt {attempt} failed: {cause}")

    def on_run_end(self, state, reason):
        self.post(f"{self.run} {state}" + (f": {reason}" if reason else ""))

    def post(self, text):
        body = json.dumps({"text": text}).encode()
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        urllib.request.urlopen(request, timeout=5).close()


def train_func():
    if train.get_checkpoint() is None:
        with train.checkpoint_dir() as directory:
            (directory / "model").write_text("weights")
            train.report({"loss": 0.5}, checkpoint=train.Checkpoint(directory))
        raise OSError("the disk is full")
    train.report({"loss": 0.25})


if __name__ == "__main__":
    result = train.DataParallelTrainer(
        train_func,
        run_config=train.RunConfig(
            callbacks=[Webhook(sys.argv[1])], failure_config=train.FailureConfig(max_failures=1)
        ),
    ).fit()
    print(result.metrics["loss"])
