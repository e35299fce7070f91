"""Who says how good an answer is: the protocol of a judge, and the synthetic task's own program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pasta_async.errors import InvalidRequestError
from pasta_async.training.corpus import Record
from pasta_async.training.synthetic import grade
from pasta_async.training.synthetic.records import example_of

if TYPE_CHECKING:
    from pasta_async.training.preference.samples import SampledPrompt

__all__ = ["Judge", "TaskJudge"]


class Judge(Protocol):
    """Says how good an answer is. A judge that costs something keeps what it said."""

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """The quality of an answer to a prompt, from 0 to 1; the baseline's answer is there to compare with.

        Cancelling it ends its requests.

        Raises:
            BackendError: This answer could not be judged; others may be.
            PastaError: No answer can be.
        """
        ...


class TaskJudge:
    """The program of the synthetic task: the share of an answer that is right."""

    async def quality(self, prompt: SampledPrompt, text: str) -> float:
        """See `pasta_async.training.synthetic.grade`. It waits for nothing.

        Raises:
            InvalidRequestError: The prompt is not of the synthetic task.
        """
        try:
            example = example_of(Record(id=prompt.id, messages=prompt.messages, written=""))
        except ValueError as error:
            raise InvalidRequestError(f"--judge task judges the synthetic task only: {error}") from None
        return grade(example, text)
