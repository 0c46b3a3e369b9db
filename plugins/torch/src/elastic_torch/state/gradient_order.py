"""The order in which the gradients of a DDP model become ready, kept so that a restart goes on with the same sums.

DDP reduces gradients in buckets. It takes its first backward pass with buckets in the reverse order of the parameters;
after that it fills them anew, once, in the order in which rank 0's gradients became ready. In which order an all-reduce
of three or more ranks adds up depends on where an element lies in its bucket. So the first step of a new process would
round otherwise than the same step of a process that has taken one before. The order is therefore a part of the state,
and a process that is restored has DDP fill its buckets by it before its first step.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_NO_MATTER = 2  # ranks up to which the order of a sum changes nothing


class GradientOrder:
    """The order of one model's gradients, as numbers of its parameters.

    Attributes:
        known: The order; empty until the first backward pass that reduces gradients, or :meth:`replay`.
    """

    def __init__(self, model: DistributedDataParallel | None) -> None:
        self.known: list[int] = []
        never = model is None or (model.find_unused_parameters and not model.static_graph)
        self._model = None if never else model
        self._parameters: list[torch.nn.Parameter] = []
        if self._model is not None:
            ignored: set[str] = getattr(self._model, "parameters_to_ignore", set())
            named = self._model.module.named_parameters()
            self._parameters = [p for name, p in named if p.requires_grad and name not in ignored]
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(partial(self._ready, number))
            for number, parameter in enumerate(self._parameters)
        ]

    def _ready(self, number: int, parameter: torch.Tensor) -> None:
        assert self._model is not None
        if len(self.known) == len(self._parameters) or not self._model.require_backward_grad_sync:
            return
        self.known.append(number)
        if parameter.grad is None or parameter.grad.is_sparse:
            self._model, self.known = None, []
            self.end_recording()

    def end_recording(self) -> None:
        """Stop recording at the end of a step: the order is known, or will never be."""
        while self._hooks:
            self._hooks.pop().remove()
        if not self._complete(self.known):
            self.known = []

    def _complete(self, order: Sequence[int]) -> bool:
        return sorted(order) == list(range(len(self._parameters)))

    def replay(self, order: Sequence[int]) -> None:
        """Have DDP fill its buckets as this order says: all ranks, before the state is loaded.

        It runs DDP's forward and backward pass, without the model in it: each parameter's gradient is zero. That may
        change the model, its optimizer and its buffers only where hooks of the script do so. Gradients are None after.
        """
        if self._model is None or not order or not self._complete(order):
            return
        self.known = list(order)
        self.end_recording()
        if dist.get_world_size(self._model.process_group) <= _NO_MATTER:
            return
        if (why := _why_not(self._model, self._parameters)) is not None:
            if dist.get_rank() == 0:
                warnings.warn(
                    f"DDP's first step after this restart may round otherwise than it would have without: {why}.",
                    stacklevel=4,
                )
            return
        inner = self._model.module
        self._model.module = _Chain([self._parameters[number] for number in order])
        self._model.require_forward_param_sync = False  # which would look for the model's buffers in there
        try:
            with torch.enable_grad():
                self._model.forward(torch.zeros(())).backward()
        finally:
            self._model.module = inner
            self._model.require_forward_param_sync = True
        for parameter in self._parameters:
            parameter.grad = None


def _why_not(model: DistributedDataParallel, parameters: Sequence[torch.nn.Parameter]) -> str | None:
    """Return why zeros must not be reduced in the place of the first gradients; None if they may."""
    if model.static_graph:
        return "with static_graph=True it learns the graph in that step"
    if getattr(model, "mixed_precision", None) is not None:
        return "it has a mixed_precision policy"
    if getattr(model, "_use_python_reducer", False) or getattr(model, "_delay_all_reduce_params", []):
        return "it does not reduce in buckets"
    if any(hasattr(parameter, "_in_backward_optimizers") for parameter in parameters):
        return "its optimizers step within the backward pass"
    for _, state in getattr(model, "_comm_hooks", []):
        if not (state is None or isinstance(state, dist.ProcessGroup)):
            return "its communication hook has a state"
    return None


class _Chain(torch.nn.Module):
    """In the place of a model: a backward pass through it gives each parameter a gradient of zeros, in their order."""

    def __init__(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        super().__init__()
        self._in_order = tuple(parameters)  # which registers none of them

    def forward(self, _: torch.Tensor) -> torch.Tensor:
        token = torch.zeros((), device=self._in_order[0].device)  # so that one thread makes all gradients
        for parameter in reversed(self._in_order):
            token = _Zeros.apply(token, parameter)  # type: ignore[no-untyped-call]
        return token


class _Zeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, token: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(parameter)
        return token.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        (parameter,) = ctx.saved_tensors
        return gradient, torch.zeros_like(parameter)
