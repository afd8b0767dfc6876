"""`track_stage`: the one thing a stage needs to know about tracking."""

from __future__ import annotations

import getpass
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from numbers import Real
from pathlib import Path
from typing import Any

from shift_diffusion.stage import raise_if_asked_to_stop
from shift_diffusion.tracking import record
from shift_diffusion.tracking.background import Sender, say, wait_for
from shift_diffusion.tracking.journal import Journal, journal_root
from shift_diffusion.tracking.location import code_root, project_root, redact, tracking_uri
from shift_diffusion.tracking.names import VALUE_LIMIT, clean_name, clean_names, flatten, shorten, value_text
from shift_diffusion.tracking.owner import this_process
from shift_diffusion.tracking.store import TrackingError
from shift_diffusion.tracking.system import INTERVAL_S, system_metrics

UNCACHED = "record/uncached"  # folder of a run's artifacts: outs that DVC doesn't keep, under their own paths
FINISH_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0  # after Ctrl-C or an error nobody wants to wait; what is left is sent by the next start


class NullRun:
    """Remembers nothing: for tests, and for all but the first process of a distributed training."""

    run_id: str | None = None
    parent_id: str | None = None

    def require_id(self, timeout: float = 60.0) -> str:
        raise TrackingError("tracking is switched off, but this step exists only to tell MLflow")

    def log_metrics(self, values: Mapping[str, float], step: int | None = None) -> None: ...

    def log_params(self, values: Mapping[str, Any]) -> None: ...

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None: ...

    def log_text(self, text: str, name: str, folder: str | None = None) -> None: ...

    def log_dataset(
        self, name: str, content_hash: str, num_images: int, source: str, context: str = "training"
    ) -> None: ...

    def set_tag(self, name: str, value: Any) -> None: ...


class Run(NullRun):
    """One execution of a stage. Methods append a line to the journal and return; no server can make them raise."""

    def __init__(self, journal: Journal, sender: Sender | None):
        self.journal, self.sender = journal, sender
        self._params: dict[str, str] = {}

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None until the server has answered for the first time."""
        return self.journal.sent.get("run_id")

    @property
    def parent_id(self) -> str | None:
        return self.journal.sent.get("parent_id")

    def require_id(self, timeout: float = 60.0) -> str:
        """The run's id, for what makes no sense without a server; raises TrackingError naming server and fault."""
        sender = self.sender
        wait_for(lambda: self.run_id or sender is None or sender.failures > 1, timeout)
        if self.run_id is None:
            reason = sender.last_error if sender and sender.last_error else f"no answer within {timeout:.0f} s"
            raise TrackingError(f"MLflow at {redact(tracking_uri())} can't be used: {reason}")
        return self.run_id

    def log_metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Numbers at a step of a curve, or, without a step, results of the stage (these stand on the parent too)."""
        flat = flatten(values)
        names = clean_names(flat)
        numbers = {names[name]: float(value) for name, value in flat.items() if isinstance(value, Real)}
        for name in [name for name, value in flat.items() if not isinstance(value, Real)]:
            self.set_tag(f"metric.{name}", flat[name])  # "not available: no C++ compiler" is an outcome, too
        self.journal.append("metrics", values=numbers, step=0 if step is None else int(step), summary=step is None)

    def log_params(self, values: Mapping[str, Any]) -> None:
        """Nested values are flattened, long ones go to an artifact; a value that changes within a run becomes a tag."""
        flat = flatten(values)
        names = clean_names(flat)
        texts = {names[name]: value_text(value) for name, value in flat.items()}
        changed = {k: v for k, v in texts.items() if self._params.get(k, v) != v}
        for name, text in changed.items():
            self.set_tag(f"changed_param.{name}", text)
        fresh = {k: v for k, v in texts.items() if k not in self._params}
        for name, text in fresh.items():
            if len(text) > VALUE_LIMIT:
                self.log_text(text, f"{name.replace('/', '_')}.txt", "params")
        self._params |= fresh
        if fresh:
            self.journal.append("params", values={k: shorten(redact(v), f"params/{k}.txt") for k, v in fresh.items()})

    def log_artifact(self, path: str | Path, folder: str | None = None) -> None:
        """A file or folder, as it is now (a copy is taken). A missing one is said and survived."""
        try:
            self.journal.append("artifact", file=self.journal.keep_file(path), folder=folder)
        except OSError as error:
            say(f"{path} could not be kept: {error}")

    def log_text(self, text: str, name: str, folder: str | None = None) -> None:
        self.journal.append("artifact", file=self.journal.keep_text(Path(name).name, text), folder=folder)

    def log_dataset(
        self, name: str, content_hash: str, num_images: int, source: str, context: str = "training"
    ) -> None:
        content = {"name": name, "content_hash": content_hash, "num_images": num_images, "source": redact(source)}
        self.journal.append("dataset", context=context, **content)

    def set_tag(self, name: str, value: Any) -> None:
        self.journal.append("tags", values={clean_name(name): redact(value_text(value))[:5000]})


@contextmanager
def track_stage(name: str, params: Any, dataset: Mapping[str, Any] | None = None) -> Iterator[NullRun]:
    """Records one execution of the DVC stage `name`, whatever way it ends.

    Args:
        name: the stage's name in dvc.yaml.
        params: a pydantic model or a mapping of the sections the stage has loaded.
        dataset: `{"name", "content_hash", "num_images", "source"}` of the pictures it works on.

    Yields a `Run`, or a `NullRun` in all but the first process of a distributed training and where
    `SHIFT_DIFFUSION_TRACKING=off`. Its status becomes FINISHED, KILLED (Ctrl-C, SIGTERM; kill -9 is found by the next
    start) or FAILED. No trouble with MLflow ever reaches the stage.
    """
    if os.environ.get("RANK", "0") != "0" or os.environ.get("SHIFT_DIFFUSION_TRACKING") == "off":
        yield NullRun()
        return
    run, recorder, stop = _start(name, params, dataset)
    status = "FAILED"
    try:
        yield run
        raise_if_asked_to_stop()
        status = "FINISHED"
    except BaseException as error:
        status = _status_of(error)
        if status == "FAILED":
            run.set_tag("error", f"{type(error).__name__}: {error}"[:2000])
        raise
    finally:
        stop.set()
        recorder.join(FINISH_TIMEOUT_S if status == "FINISHED" else STOP_TIMEOUT_S)
        _end(run, name, status)


def _status_of(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "KILLED"
    if isinstance(error, SystemExit):
        if error.code in (None, 0):
            return "FINISHED"
        return "KILLED" if error.code in (130, 143) else "FAILED"
    return "FAILED"


def _start(name: str, params: Any, dataset: Mapping[str, Any] | None) -> tuple[Run, threading.Thread, threading.Event]:
    root, code = project_root(), code_root()
    journal = Journal.create(journal_root(root), name)
    text = _read(code / "params.yaml")
    sections = _sections(params)
    journal.append(
        "start",
        stage=name,
        owner=this_process(),
        config_hash=record.config_hash(text),
        configuration=record.read_mapping(code / "params.yaml") or sections,
        params_text=redact(text),
        params={clean_name(k): shorten(redact(value_text(v)), "params") for k, v in flatten(sections).items()},
        tags=_tags(name),
    )
    say(f"recording in {tracking_uri(root)}")
    sender = Sender(journal, root)
    run = Run(journal, sender)
    run.log_params(sections)
    if dataset is not None:
        run.log_dataset(**dataset)
    stop = threading.Event()
    recorder = threading.Thread(target=_record, args=(run, name, code, stop), name="run-record", daemon=True)
    recorder.start()
    sender.start()
    return run, recorder, stop


def _sections(params: Any) -> dict:
    if hasattr(params, "model_dump"):
        return params.model_dump(mode="json", by_alias=True)
    return {k: _sections(v) if hasattr(v, "model_dump") or isinstance(v, Mapping) else v for k, v in params.items()}


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""


def _tags(name: str) -> dict[str, str]:
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        user = "unknown"
    tags = {"mlflow.user": user, "mlflow.source.name": f"dvc.yaml:{name}", "mlflow.source.type": "LOCAL"}
    if origin := os.environ.get("SHIFT_DIFFUSION_RERUN_OF"):
        tags["rerun_of"] = origin
    if experiment := os.environ.get("DVC_EXP_NAME"):
        tags["dvc_experiment"] = experiment
    return tags


def _record(run: Run, name: str, code: Path, stop: threading.Event) -> None:
    """In a thread of its own: git and the list of packages take longer than a stage's start should."""
    try:
        _record_code(run, name, code)
    except Exception as error:  # noqa: BLE001 - an incomplete record is no reason to stop the work
        if not stop.is_set():  # else the stage has ended before its record was complete
            say(f"the state of the code could not be recorded: {error}")
    system_metrics()  # the first reading of the CPU share is the time since boot
    step = 0
    while not stop.wait(INTERVAL_S):
        run.journal.append("metrics", values=system_metrics(), step=step, summary=False)
        step += 1


def _record_code(run: Run, name: str, code: Path) -> None:
    git = record.git_state(code)
    installed = record.packages()
    tags = {
        "mlflow.source.git.commit": git["commit"],
        "mlflow.source.git.branch": git["branch"],
        "git.dirty": "true" if git["dirty"] else "false",
        "git.untracked": None if git["complete"] else "left out",
        "dvc.stage_hash": record.stage_hash(code, name),
        **{f"version.{p}": installed[p] for p in record.MAIN_PACKAGES if p in installed},
        **record.machine(),
    }
    run.journal.append("tags", values={k: str(v) for k, v in tags.items() if v is not None})
    run.log_text("".join(f"{k}=={v}\n" for k, v in installed.items()), "packages.txt", "record")
    if git["patch"]:
        patch = run.journal.keep_text("uncommitted.patch", "")
        (run.journal.folder / patch).write_bytes(git["patch"].encode("utf-8", "surrogateescape"))
        run.journal.append("artifact", file=patch, folder="record")
    run.log_text(value_text(record.dep_hashes(code, name)), "deps.json", "record")
    for path in record.uncached_outs(code):
        run.log_artifact(code / path, (Path(UNCACHED) / path).parent.as_posix())
    for file in ("params.yaml", "dvc.yaml", "dvc.lock"):
        if (code / file).is_file():
            run.log_text(redact(_read(code / file)), file, "record")


def _end(run: Run, name: str, status: str) -> None:
    if status == "FINISHED":
        root = code_root()
        run.log_text(value_text(record.out_hashes(root, name)), "outs.json", "record")
        for path in record.uncached_out_paths(record.stage_entry(root, name) or {}):
            if (root / path).is_file():
                run.log_artifact(root / path, (Path(UNCACHED) / path).parent.as_posix())
    run.journal.append("end", status=status)
    timeout = FINISH_TIMEOUT_S if status == "FINISHED" else STOP_TIMEOUT_S
    if run.sender is not None and not run.sender.finish(timeout) and not run.sender.failures:
        say(f"slow to answer; the rest of this run is kept in {run.journal.folder} and sent later")
