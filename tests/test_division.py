"""How operations on divided operands go, as arithmetic."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_par.plan.division import Move, Named, divide, sums

KEPT = {"never": lambda axes, axis: False, "always": lambda axes, axis: axes[-1] is None}
PRODUCT = Named(("ik", "kn"), "in")
# Of products ik,kn->in: layouts of the operands; what is done to them, the sums, the layout of the result.
PRODUCTS = {
    "by columns": ((None, (None, "x")), ((Move("enter", "x"),), ()), [], (None, "x")),
    "by rows": ((None, ("x", None)), ((Move("split", "x", 1),), ()), [Move("total", "x")], (None, None)),
    "rows after columns": (((None, "x"), ("x", None)), ((), ()), [Move("total", "x")], (None, None)),
    "columns after columns": (
        ((None, "x"), (None, "x")),
        ((Move("gather_and_enter", "x", 1),), ()),
        [],
        (None, "x"),
    ),
    "two axes": (((None, "y"), ("y", "x")), ((Move("enter", "x"),), ()), [Move("total", "y")], (None, "x")),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_products(case):
    layouts, operands, moves, axes = PRODUCTS[case]
    division = divide(PRODUCT, layouts, len)
    assert division.operands == operands
    assert sums(PRODUCT, division) == (moves, axes)


def test_rows_and_their_bias():
    named = Named(("in", "n"), "in")
    division = divide(named, (("x", None), None), len)
    assert division.operands == ((), (Move("enter", "x"),))
    assert sums(named, division) == ([], ("x", None))


def test_a_sum_may_stay_divided():
    division = divide(PRODUCT, (None, ("x", None)), len)
    assert sums(PRODUCT, division, KEPT["always"]) == ([Move("scatter", "x", 1)], (None, "x"))


def test_dims_that_must_be_whole_are_gathered():
    division = divide(Named(("ij",), "ij", undivided="j"), (("x", "y"),), len)
    assert not division.is_as_named
    assert division.operands == ((Move("gather", "y", 1),),) and division.result == ("x", None)


@pytest.mark.parametrize(("num_ranks", "axes"), [(2, ("x", None)), (3, (None, None))])
def test_an_axis_divides_the_length_that_a_dim_falls_into(num_ranks, axes):
    named = Named(("i",), ("i", None), lengths=(("i", 2),))  # 6 -> 2, 3
    assert divide(named, [("x",)], lambda axis: num_ranks).result == axes


def test_others_than_sums_do_not_stay_divided():
    named = Named(("ij",), "i", combine="largest")
    assert sums(named, divide(named, [(None, "x")], len), KEPT["always"]) == ([Move("largest", "x")], (None,))


@st.composite
def operations(draw):
    names = draw(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4, unique=True))
    operands = draw(st.lists(st.lists(st.sampled_from(names), unique=True, max_size=4), min_size=1, max_size=3))
    result = draw(st.lists(st.sampled_from(names), unique=True, max_size=4))
    layouts = []
    for dims in operands:
        axes = draw(st.permutations(["x", "y", *[None] * len(dims)]))[: len(dims)]
        layouts.append(draw(st.sampled_from([None, tuple(axes)])))
    return layouts, operands, result


@settings(deadline=None)
@given(operation=operations(), kept=st.sampled_from(list(KEPT)))
def test_operands_come_to_lie_as_the_division_says(operation, kept):
    layouts, labels, result = operation
    named = Named(labels, result)
    division = divide(named, layouts, len)
    assert division.is_as_named
    assert len(set(division.axis_of.values())) == len(division.axis_of)
    for layout, names, moves in zip(layouts, labels, division.operands, strict=True):
        axes = [None] * len(names) if layout is None else list(layout)
        entered = {axis for axis in axes if axis is not None}
        for move in moves:
            if move.dim is None:
                assert move.kind == "enter" and move.axis not in axes
            else:
                assert axes[move.dim] == (None if move.kind == "split" else move.axis)
                axes[move.dim] = move.axis if move.kind == "split" else None
            entered.add(move.axis)
        assert tuple(axes) == division.cut(names)
        # Along an axis that divides the operation, ranks hold other parts of the operand, or its gradient is summed.
        assert set(division.axis_of.values()) <= entered
    moves, axes = sums(named, division, KEPT[kept] if result else KEPT["never"])
    lacking = [axis for name, axis in division.axis_of.items() if name not in result]
    assert [move.axis for move in moves] == lacking
    assert len([axis for axis in axes if axis]) == len({axis for axis in axes if axis})
