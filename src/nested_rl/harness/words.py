"""What the tools answer, in two voices: whole sentences for large agents, `nested_rl.replies` for very small ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from nested_rl import replies
from nested_rl.harness.workspace import BadPath, NoFile, NotText, TextNotFound, TextNotUnique, TooBig, WorkspaceError
from nested_rl.types import Feedback, Problem, Validation


class Words(ABC):
    """One voice. Every method gives the text of one kind of reply."""

    read_chars: int
    """At most this many characters of a file are shown."""

    @abstractmethod
    def done(self, what: str) -> str:
        """A file was written."""

    @abstractmethod
    def listing(self, paths: Sequence[str]) -> str:
        """The files there are."""

    @abstractmethod
    def text(self, text: str) -> str:
        """A file's text, cut to `read_chars`."""

    @abstractmethod
    def accuracy(self, scores: Mapping[str, float]) -> str:
        """The untrained bases' scores."""

    @abstractmethod
    def verdict(self, validation: Validation, *, attempts_left: int) -> str:
        """What came of a submission."""

    @abstractmethod
    def feedback(self, feedback: Feedback, *, jobs_left: int) -> str:
        """How an accepted job did on the dev split, when another may follow. Begins with `accepted`."""

    accepted: str
    """How the reply to an accepted job begins."""

    @abstractmethod
    def refused(self, error: WorkspaceError) -> str:
        """The workspace said no."""

    @abstractmethod
    def bad_call(self, why: str) -> str:
        """There is no such tool, or it takes other arguments."""


class BriefWords(Words):
    """A few tokens each, and only the first problem of a job."""

    read_chars = 400

    def done(self, what: str) -> str:  # noqa: ARG002 - a small agent needs no name
        return replies.OK

    def listing(self, paths: Sequence[str]) -> str:
        return replies.FILES.format(names=" ".join(paths))

    def text(self, text: str) -> str:
        return text[: self.read_chars]

    def accuracy(self, scores: Mapping[str, float]) -> str:
        return replies.accuracy(dict(scores))

    def verdict(self, validation: Validation, *, attempts_left: int) -> str:  # noqa: ARG002 - it learns to count
        if validation.ok:
            return replies.VALID
        first = validation.problems[0]
        return replies.ERROR.format(brief=replies.brief(first.brief or first.message))

    accepted = replies.VALID

    def feedback(self, feedback: Feedback, *, jobs_left: int) -> str:  # noqa: ARG002 - it learns to count
        return f"{self.accepted} {feedback.score or 0.0:.2f}"

    def refused(self, error: WorkspaceError) -> str:
        match error:
            case NoFile():
                return replies.NO_FILE.format(name=replies.brief(error.name))
            case TextNotFound():
                return replies.NOT_FOUND
            case TextNotUnique():
                return replies.NOT_UNIQUE
            case TooBig():
                return replies.TOO_BIG
            case BadPath() | NotText() | _:
                return replies.BAD_PATH

    def bad_call(self, why: str) -> str:  # noqa: ARG002 - one reply for all
        return replies.BAD_CALL


class FullWords(Words):
    """Sentences an agent can act on: every problem, with its place and a hint."""

    read_chars = 20_000

    def done(self, what: str) -> str:
        return f"Done: {what}."

    def listing(self, paths: Sequence[str]) -> str:
        return "\n".join(paths) or "The workspace is empty."

    def text(self, text: str) -> str:
        more = len(text) - self.read_chars
        return text if more <= 0 else f"{text[: self.read_chars]}\n[{more} more characters are not shown]"

    def accuracy(self, scores: Mapping[str, float]) -> str:
        lines = [f"{name}: {value:.2f}" for name, value in sorted(scores.items(), key=lambda item: -item[1])]
        return "\n".join(["Accuracy of the untrained models on a development set, the best first:", *lines])

    def verdict(self, validation: Validation, *, attempts_left: int) -> str:
        if validation.ok:
            return f"{self.accepted} It is accepted and will be trained."
        left = f"Attempts left: {attempts_left}." if attempts_left else "No attempts left."
        problems = [f"{n}. {_sentence(problem)}" for n, problem in enumerate(validation.problems, 1)]
        return "\n".join(["The job is not valid.", *problems, left])

    accepted = "The job is valid."

    def feedback(self, feedback: Feedback, *, jobs_left: int) -> str:
        if feedback.score is None:
            told = f"It was run, but there is no model to score: {feedback.error[: self.read_chars]}"
        else:
            told = f"It was trained; the model's accuracy on a development set is {feedback.score:.2f}."
        left = "one more job" if jobs_left == 1 else f"{jobs_left} more jobs"
        return f"{self.accepted} {told}\nYou may change it and hand in {left}; the best on the development set counts. To stop, answer without a tool call."

    def refused(self, error: WorkspaceError) -> str:
        return f"Error: {error}."

    def bad_call(self, why: str) -> str:
        return f"Error: {why}."


def _sentence(problem: Problem) -> str:
    hint = f" Hint: {problem.hint}" if problem.hint else ""
    return f"[{problem.code}] {problem.where}: {problem.message}{hint}"
