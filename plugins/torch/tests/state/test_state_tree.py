"""A state is taken apart and put together again as it was, or refused by name."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
import torch

from elastic_torch.state.state_tree import put_together, take_apart


def there_and_back(state: Any) -> Any:
    said, tensors = take_apart(state)
    return put_together(json.loads(json.dumps(said)), tensors.__getitem__)


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        7,
        -(2**80),
        0.1 + 0.2,
        5e-324,
        math.inf,
        "ä\n\0",
        b"\x00\xff",
        [],
        (),
        {},
        [1, (2, [3, ("four",)])],
        {0: "int", "0": "str", 0.5: "float", None: "none", (1, 2): "tuple"},
        {"dict": [["not", "ours"]]},
        Counter({3: 2}),
        torch.bfloat16,
        torch.device("cuda", 1),
        np.float32(0.1),
        np.int64(-1),
        random.Random(3).getstate(),
    ],
    ids=repr,
)
def test_a_value_that_is_no_tensor_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    back = there_and_back({"value": value})["value"]
    assert back == value
    assert type(back) is type(value)


def test_true_is_not_one_and_a_number_that_is_none_stays_so() -> None:
    back = there_and_back([True, 1, math.nan])
    assert back[0] is True
    assert back[1] is not True
    assert math.isnan(back[2])


def test_tensors_and_arrays_are_the_same_memory_and_not_copied() -> None:
    tensor, array = torch.ones(2, requires_grad=True), np.arange(3, dtype=np.uint32)
    said, tensors = take_apart(OrderedDict(a=[tensor], b={"c": array}))
    assert tensors[0].data_ptr() == tensor.data_ptr()
    assert not tensors[0].requires_grad
    back = put_together(said, tensors.__getitem__)
    assert torch.equal(back["a"][0], tensor)
    assert back["b"]["c"].dtype == np.uint32
    np.testing.assert_array_equal(back["b"]["c"], array)


def test_numpys_generator_goes_on_where_it_was() -> None:
    state = np.random.RandomState(3)
    state.normal()
    other = np.random.RandomState(4)
    other.set_state(there_and_back(state.get_state(legacy=False)))
    assert other.normal() == state.normal()


class Foreign:
    """Something that only pickle could keep."""


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"a": [0, Foreign()]}, r"^state\['a'\]\[1\] is a Foreign, which cannot be kept"),
        ({Foreign: 1}, r"^state has the key <class .*, a type, which cannot be kept"),
        ([print], r"^state\[0\] is a builtin_function_or_method"),
        ([np.array([Foreign()])], r"^state\[0\] is a ndarray"),
        ([torch.eye(2).to_sparse()], r"^state\[0\] is a tensor that is sparse"),
        ([torch.empty(2, device="meta")], r"^state\[0\] is a tensor that is sparse, quantized or without data"),
        ([1j], r"^state\[0\] is a complex"),
    ],
)
def test_an_unsupported_value_is_refused_with_its_place(state: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        take_apart(state)


class DTensor(torch.Tensor):
    """Known by its name: nothing is imported where there is none."""


def test_sharded_tensors_are_refused_where_the_model_has_none() -> None:
    with pytest.raises(TypeError, match=r"^state\['a'\] is a DTensor, but the model has none"):
        take_apart({"a": torch.eye(2).as_subclass(DTensor)})


@pytest.mark.parametrize("said", [{"a": 1, "b": 2}, {"pickle": "x"}, {"dtype": "load"}, {}])
def test_a_text_that_is_no_part_of_a_state_is_refused(said: Any) -> None:
    with pytest.raises(ValueError, match="is no part of a state"):
        put_together(said, lambda _number: torch.empty(0))
