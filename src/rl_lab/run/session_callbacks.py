"""What a session does when its run was evaluated, saved or sent back."""

from collections.abc import Callable

from rl_lab.collect.evaluate import Evaluation
from rl_lab.display.sinks import Sink, TensorBoardSink
from rl_lab.records.run_directory import RunDirectory
from rl_lab.run.callback import Callback
from rl_lab.run.filming import film
from rl_lab.run.orchestrator import Orchestrator


def picture_sink(directory: RunDirectory) -> Sink:
    """Draws pictures into the run's folder."""
    from rl_lab.display.pictures import PictureSink  # it is only needed by some algorithms

    return PictureSink(directory.path / "pictures")


class ShowPictures(Callback):
    """Draws what the algorithm has to show after an evaluation; its numbers go to timing.jsonl."""

    def after_evaluation(self, run: Orchestrator, evaluation: Evaluation) -> None:
        """Random numbers are borrowed: training does not notice."""
        step = run.counters.env_steps
        with run.streams.borrowed("pictures/"):
            pictures = run.algorithm.pictures(evaluation.paths)
            run.sinks.draw(step, pictures)
        numbers = {name: each for one in pictures.values() for name, each in one.numbers.items()}
        if numbers:
            run.timing.append(step, numbers)
            run.alerts.look_closely(step, numbers)


class FilmEvaluations(Callback):
    """Records an episode after every `every` evaluations (`logging.video_every`)."""

    def __init__(self, every: int) -> None:
        self.every = every

    def after_evaluation(self, run: Orchestrator, evaluation: Evaluation) -> None:
        """A world that cannot be drawn ends the videos, not the run."""
        if self.every == 0 or (run.progress.evaluations + 1) % self.every:
            return
        if film(run, "eval") is None:
            self.every = 0


class PurgeTensorBoard(Callback):
    """Makes TensorBoard forget the future that a rollback undid."""

    def after_rollback(self, run: Orchestrator, step: int) -> None:
        """Begin another event file there."""
        for index, sink in enumerate(run.sinks.sinks):
            if isinstance(sink, TensorBoardSink):
                sink.close()
                run.sinks.sinks[index] = TensorBoardSink(
                    sink.folder, purge_step=step, metrics_file=run.folder / "metrics.jsonl"
                )


class RecordSummary(Callback):
    """Writes summary.json and the row of the index with every checkpoint."""

    def __init__(self, record: Callable[[], object]) -> None:
        self.record = record

    def after_checkpoint(self, run: Orchestrator) -> None:
        """As far as the run has come."""
        self.record()
