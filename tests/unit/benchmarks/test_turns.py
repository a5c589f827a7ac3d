import importlib.util

from support.shared import ROOT

spec = importlib.util.spec_from_file_location("turns", ROOT / "benchmarks" / "turns.py")
assert spec is not None
assert spec.loader is not None
turns = importlib.util.module_from_spec(spec)
spec.loader.exec_module(turns)


def test_functions_take_turns_after_their_warm_up_and_each_starts_equally_often():
    order: list[str] = []
    functions = {name: (lambda name=name: order.append(name)) for name in "abc"}
    times = turns.interleave(functions, rounds=3, warmup=1)
    assert "".join(order) == "abc" + "abcbcacab"
    assert {name: timing.runs for name, timing in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_the_speedup_is_the_ratio_of_the_medians():
    clock = iter([0.0, 3.0, 3.0, 4.5])
    times = turns.interleave({"old": int, "new": int}, rounds=1, warmup=0, clock=lambda: next(clock))
    assert times.speedup("old", "new") == 2.0
