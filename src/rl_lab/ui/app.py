"""What the server answers: one page for every address, data as JSON, files of runs."""

import functools
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rl_lab.analysis.groups import load_run
from rl_lab.analysis.settings import settings
from rl_lab.core.errors import UserError
from rl_lab.display.metric_style import load_display
from rl_lab.records.config_file import load_tree
from rl_lab.records.labels import add_tags, remove_tags, set_notes
from rl_lab.records.metrics import plain
from rl_lab.records.recordings import list_recordings, read_frame, read_recording
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.stop import stop_run
from rl_lab.ui import comparing, episodes, facts
from rl_lab.ui.access import FOREIGN_POLICY, Guard
from rl_lab.ui.files import file_answer
from rl_lab.ui.library import Library, NotHereError

ASSETS = Path(__file__).parent / "assets"
PAGE = "index.html"
KINDS = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript"}
KINDS |= {".svg": "image/svg+xml"}
POINTS, MOST_POINTS, MOST_METRICS, MOST_SPARKS = 1_200, 4_000, 64, 100
LONGEST_NOTE = 10_000

Answer = Callable[[Request], Response]


def make_app(root: Path, *, token: str, hosts: list[str], cookie: str = "rl_lab_ui") -> Starlette:
    """The application for one folder of runs. `hosts` are the names it may be asked by."""
    pages = Pages(Library(root), episodes.Recorders(root))
    read = functools.partial(Route, methods=["GET"])
    change = functools.partial(Route, methods=["POST"])
    run = "/api/runs/{run}"
    recording = f"{run}/recordings/{{name}}"
    routes = [
        *(
            read(path, _page)
            for path in ("/", "/run/{rest:path}", "/compare", "/sweep/{rest:path}")
        ),
        read("/assets/{name}", _asset),
        read("/api/runs", _sync(pages.table)),
        read("/api/sparks", _sync(pages.sparks)),
        read("/api/compare", _sync(pages.compare)),
        read("/api/sweeps", _sync(pages.sweep_names)),
        read("/api/sweeps/{name}", _sync(pages.sweep)),
        read(run, _sync(pages.run)),
        read(f"{run}/pulse", _sync(pages.pulse)),
        read(f"{run}/series", _sync(pages.series)),
        read(f"{run}/config", _sync(pages.config)),
        read(f"{run}/log", _sync(pages.log)),
        read(f"{run}/report", _sync(pages.report)),
        read(f"{run}/files/{{file:path}}", _sync(pages.file)),
        read(f"{run}/recordings", _sync(pages.recordings)),
        read(f"{recording}/{{number:int}}", _sync(pages.episode)),
        read(f"{recording}/{{number:int}}/frame/{{step:int}}", _sync(pages.frame)),
        read(f"{recording}/{{number:int}}/picture/{{step:int}}", _sync(pages.picture)),
        read(f"{recording}/{{number:int}}/film", _sync(pages.film)),
        change(f"{run}/stop", _changing(pages.stop)),
        change(f"{run}/labels", _changing(pages.label)),
        change(f"{run}/recordings", _changing(pages.record)),
    ]
    app = Starlette(
        routes=routes,
        # The host first: what a page may ask is decided by comparing origins with it.
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
            Middleware(Guard, token=token, cookie=cookie),
        ],
        exception_handlers={
            UserError: _explained,
            HTTPException: _refused,
            Exception: _failed,
        },
    )
    app.state.recorders = pages.recorders
    return app


class Pages:
    """The data of every page."""

    def __init__(self, library: Library, recorders: episodes.Recorders) -> None:
        self.library, self.recorders = library, recorders
        self.display = load_display()

    def table(self, request: Request) -> Response:
        """The runs that fulfil the words of `filter`."""
        return _json(self.library.table(request.query_params.get("filter", "")[:1000].split()))

    def sparks(self, request: Request) -> Response:
        """The course of a metric of each of some runs."""
        names = request.query_params.get("runs", "").split(",")[:MOST_SPARKS]
        return _json(self.library.sparks(names, request.query_params.get("metric", "reward")))

    def compare(self, request: Request) -> Response:
        """Runs side by side."""
        query = request.query_params
        names = [name for name in query.get("runs", "").split(",") if name]
        keys = [key for key in query.get("group", "").split(",") if key]
        metric = query.get("metric") or "reward"
        return _json(comparing.comparison(self.library, names, metric, keys, self.display))

    def sweep_names(self, request: Request) -> Response:
        """All sweeps."""
        return _json({"sweeps": self.library.sweeps()})

    def sweep(self, request: Request) -> Response:
        """One sweep."""
        from rl_lab.ui import sweeps  # here: other pages need no torch and no Optuna

        return _json(sweeps.sweep_page(self.library.sweep(request.path_params["name"])))

    # ---------------------------------------------------------------------------------------- a run

    def run(self, request: Request) -> Response:
        """Results, checkpoints, files, alerts, and which metrics there are."""
        run = self._run(request)
        names = []
        for file in (run.metrics_file, run.timing_file):
            series = self.library.series(file)
            series.update()
            names += series.names()
        found = facts.facts(run, self.library.root)
        return _json({**found, "metrics": facts.styles(self.display, names)})

    def pulse(self, request: Request) -> Response:
        """What changes when anything of the run does; cheap enough to be asked every second."""
        run = self._run(request)
        return _json({**facts.stamp(run), **self.recorders.state(run)})

    def series(self, request: Request) -> Response:
        """Curves of some metrics, down-sampled; and how much of the files was read for them."""
        run, query = self._run(request), request.query_params
        names = query.get("names", "").split(",")[:MOST_METRICS]
        count = min(max(_whole(query, "points") or POINTS, 16), MOST_POINTS)
        curves: dict[str, Any] = {}
        known = 1.0
        for file in (run.metrics_file, run.timing_file):
            series = self.library.series(file)
            series.update()
            found = series.curves(
                names, low=_whole(query, "low"), high=_whole(query, "high"), count=count
            )
            curves |= {name: comparing.points(curve) for name, curve in found.items()}
            known = min(known, series.known)
        return _json({"curves": curves, "known": known})

    def config(self, request: Request) -> Response:
        """Every setting with its origin; without origins if the algorithm is not known here."""
        run = self._run(request)
        try:
            rows = [vars(each) for each in settings(load_run(run))]
        except UserError:
            rows = [
                {"path": path, "value": value, "default": None, "origin": ""}
                for path, value in load_run(run).config.items()
            ]
        return _json({"settings": plain(rows), "tree": plain(load_tree(run.config_file))})

    def log(self, request: Request) -> Response:
        """The end of run.log."""
        return _json({"text": facts.tail(self._run(request).log_file)})

    def report(self, request: Request) -> Response:
        """The report of a run, as a page that may do nothing."""
        run = self._run(request)
        path = self.library.file(run, "report.html")
        answer = file_answer(request, path, KINDS[".html"])
        answer.headers["Content-Security-Policy"] = FOREIGN_POLICY
        return answer

    def file(self, request: Request) -> Response:
        """A film or a picture of a run."""
        name = request.path_params["file"]
        kind = facts.MEDIA.get(Path(name).suffix)
        if kind is None or name.split("/")[0] not in facts.MEDIA_FOLDERS:
            raise NotHereError(f"there is no film or picture '{name[:80]}'")
        return file_answer(request, self.library.file(self._run(request), name), kind)

    # ------------------------------------------------------------------------------------- episodes

    def recordings(self, request: Request) -> Response:
        """What was recorded of a run."""
        run = self._run(request)
        return _json({"recordings": list_recordings(run), **self.recorders.state(run)})

    def episode(self, request: Request) -> Response:
        """All numbers of a recorded episode."""
        run, name, number = self._recorded(request)
        found = episodes.episode(run, name, number)
        if request.query_params.get("download"):
            about = read_recording(run, name)
            return _download(
                json.dumps(plain({**about, **found})).encode(), f"{name}-{number}.json"
            )
        return _json(found)

    def frame(self, request: Request) -> Response:
        """A frame of a recorded episode."""
        run, name, number = self._recorded(request)
        data = read_frame(run, name, number, request.path_params["step"])
        return Response(data, media_type="image/png")

    def picture(self, request: Request) -> Response:
        """An observation that is a picture."""
        run, name, number = self._recorded(request)
        key = request.query_params.get("key", "")
        data = episodes.picture(run, name, number, key, request.path_params["step"])
        return Response(data, media_type="image/png")

    def film(self, request: Request) -> Response:
        """A recorded episode as a film."""
        run, name, number = self._recorded(request)
        fps = read_recording(run, name).get("fps")
        speed = float(fps) if isinstance(fps, int | float) else 30.0
        suffix, data = episodes.film(run, name, number, speed)
        return _download(data, f"{name}-{number}{suffix}")

    # -------------------------------------------------------------------------------------- changes

    def stop(self, request: Request, asked: Mapping[str, Any]) -> Response:
        """Ask a run in training to save and end."""
        return _json({"process": stop_run(self._run(request))})

    def label(self, request: Request, asked: Mapping[str, Any]) -> Response:
        """Tags and notes."""
        run = self._run(request)
        add, take, notes = (asked.get(key) for key in ("add", "remove", "notes"))
        for names in (add, take):
            if names is not None and not _are_texts(names):
                raise UserError("tags must be a list of texts")
        if notes is not None and (not isinstance(notes, str) or len(notes) > LONGEST_NOTE):
            raise UserError(f"notes must be a text of at most {LONGEST_NOTE:,} characters")
        labels = add_tags(run, add or [])
        labels = remove_tags(run, take) if take else labels
        labels = set_notes(run, notes) if notes is not None else labels
        return _json({"tags": labels.tags, "notes": labels.notes})

    def record(self, request: Request, asked: Mapping[str, Any]) -> Response:
        """Record episodes of a checkpoint, in a process of its own."""
        self.recorders.start(self._run(request), asked)
        return _json({"recording": True})

    def _run(self, request: Request) -> RunDirectory:
        return self.library.run(request.path_params["run"])

    def _recorded(self, request: Request) -> tuple[RunDirectory, str, int]:
        run = self._run(request)
        return run, request.path_params["name"], request.path_params["number"]


def _sync(answer: Answer) -> Callable[[Request], Awaitable[Response]]:
    """An answer that reads files, in a thread: others are served meanwhile."""

    async def answered(request: Request) -> Response:
        return await run_in_threadpool(answer, request)

    return answered


def _changing(
    answer: Callable[[Request, Mapping[str, Any]], Response],
) -> Callable[[Request], Awaitable[Response]]:
    """An answer to a JSON object."""

    async def answered(request: Request) -> Response:
        try:
            asked = json.loads(await request.body())
        except (ValueError, RecursionError) as error:
            raise UserError("the body is not JSON") from error
        if not isinstance(asked, dict):
            raise UserError("the body must be a JSON object")
        return await run_in_threadpool(answer, request, asked)

    return answered


async def _page(request: Request) -> Response:
    return Response((ASSETS / PAGE).read_bytes(), media_type=KINDS[".html"])


async def _asset(request: Request) -> Response:
    """A file of our own: its name is only compared with those there are."""
    name = request.path_params["name"]
    for file in ASSETS.iterdir():
        if file.name == name and file.suffix in KINDS:
            return Response(file.read_bytes(), media_type=KINDS[file.suffix])
    raise HTTPException(404)


def _json(data: object) -> Response:
    return JSONResponse(plain(data))


def _download(data: bytes, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(data, media_type="application/octet-stream", headers=headers)


def _whole(query: Mapping[str, str], name: str) -> int | None:
    text = query.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 15 else None


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and len(value) <= 64 and all(isinstance(x, str) for x in value)


async def _explained(request: Request, error: Exception) -> Response:
    code = 404 if isinstance(error, NotHereError) else 400
    return JSONResponse({"error": str(error)}, status_code=code)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": "the server failed; its terminal says why"}, status_code=500)
