"""A small engine made by hand, without the compiler: kernels as LLVM text, the plan as data.

    hidden = x * 2 + w          (a view of the weights, rows of 8)
    y = hidden + hidden         (in one of two kernels, by the number of rows)
    cache += 1                  (in place)

x is float32 [batch, 8], batch 1..64; cache is int64 [4].
"""

from __future__ import annotations

import llvmlite.binding as llvm
import numpy as np

from tilewright.build import plan_codegen
from tilewright.engine.cpu_program import plan_symbol
from tilewright.engine.engine import Engine
from tilewright.engine.file import FORMAT, VERSION, Package
from tilewright.engine.plan_json import plan_to_json
from tilewright.engine.weights import Weights
from tilewright.host import host_cpu
from tilewright.runtime.plan import Argument, BufferReference, LaunchChoice, Plan, PlanStep, TensorSpec
from tilewright.symbolic import Symbol, round_up, symbol

COLUMNS = 8
BATCH = symbol("batch", 1, 64)

_LOOP = """
define void @{name}(ptr %arguments, ptr %scratch, i64 %begin, i64 %end) nounwind {{
entry:
  %a.p = getelementptr i64, ptr %arguments, i64 0
  %a = load ptr, ptr %a.p
  %b.p = getelementptr i64, ptr %arguments, i64 1
  %b = load ptr, ptr %b.p
  %c.p = getelementptr i64, ptr %arguments, i64 2
  %c = load ptr, ptr %c.p
  br label %loop
loop:
  %i = phi i64 [ %begin, %entry ], [ %next, %loop ]
  %at = mul i64 %i, {elements}
  %from = getelementptr {element}, ptr %a, i64 %at
  %to = getelementptr {element}, ptr %c, i64 %at
  %x = load <{elements} x {element}>, ptr %from, align 4
{body}
  store <{elements} x {element}> %y, ptr %to, align 4
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %end
  br i1 %more, label %loop, label %out
out:
  ret void
}}
"""
KERNELS = {
    "scale": _LOOP.format(
        name="scale",
        element="float",
        elements=COLUMNS,
        body="""  %w = load <8 x float>, ptr %b, align 4
  %s.p = getelementptr i64, ptr %arguments, i64 3
  %s = load float, ptr %s.p
  %s1 = insertelement <8 x float> poison, float %s, i64 0
  %s8 = shufflevector <8 x float> %s1, <8 x float> poison, <8 x i32> zeroinitializer
  %m = fmul <8 x float> %x, %s8
  %y = fadd <8 x float> %m, %w""",
    ),
    "twice_small": _LOOP.format(
        name="twice_small", element="float", elements=COLUMNS, body="  %y = fadd <8 x float> %x, %x"
    ),
    "twice_large": _LOOP.format(
        name="twice_large",
        element="float",
        elements=COLUMNS,
        body="  %y = fmul <8 x float> %x, splat (float 2.0)",
    ),
    "increment": _LOOP.format(
        name="increment", element="i64", elements=4, body="  %y = add <4 x i64> %x, splat (i64 1)"
    ),
}


def make_plan() -> Plan:
    """The plan of the module's docstring."""
    x, y, cache = (BufferReference(*pair) for pair in (("input", "x"), ("output", "y"), ("input", "cache")))
    offset = round_up(BATCH * 3, 64)  # any symbolic place
    hidden, bias = BufferReference("arena", "", offset), BufferReference("weight", "bias")
    row_bytes = BATCH * (4 * COLUMNS)

    def pointers(*references: BufferReference) -> tuple[Argument, ...]:
        return tuple(Argument("*f32", reference) for reference in references)

    scale = LaunchChoice("scale", (*pointers(x, bias, hidden), Argument("f32", 2.0)), (BATCH, 1, 1))
    small = LaunchChoice("twice_small", pointers(hidden, hidden, y), (BATCH, 1, 1), BATCH, 5)
    large = LaunchChoice("twice_large", pointers(hidden, hidden, y), (BATCH, 1, 1))
    increment = LaunchChoice("increment", pointers(cache, cache, cache), (1, 1, 1))
    return Plan(
        symbols={"batch": Symbol("batch", 1, 64)},
        inputs=[TensorSpec("x", "float32", (BATCH, COLUMNS)), TensorSpec("cache", "int64", (4,), mutates="cache")],
        outputs=[TensorSpec("y", "float32", (BATCH, COLUMNS)), TensorSpec("cache_out", "int64", (4,), mutates="cache")],
        steps=[
            PlanStep("scale", (scale,), ("multiply", "add"), row_bytes * 2, row_bytes // 2, {"why": "the only one"}),
            PlanStep("twice", (small, large), ("add",)),
            PlanStep("count", (increment,), ("add",), 64, 4),
        ],
        arena_bytes=offset + row_bytes,
        scratch_bytes=64,
    )


def make_package(features: tuple[str, ...] = ()) -> Package:
    """The engine's package, compiled with the host's code generator."""
    weights = Weights.pack({"unused": np.arange(3, dtype=np.int8), "bias": np.arange(COLUMNS, dtype=np.float32)})
    plan = make_plan()
    data = plan_to_json(plan)
    symbol_name = plan_symbol(data, weights.offsets)
    texts = {**KERNELS, "plan": plan_codegen.generate(plan, symbol_name, {k: k for k in KERNELS}, weights.offsets)}
    objects = {f"kernels/{name}.o": compile_text(text) for name, text in texts.items()}
    program = {
        "target": {"name": "cpu", "triple": host_cpu().triple, "features": list(features)},
        "plan": data,
        "symbol": symbol_name,
        "objects": list(objects),
        "kernels": {name: {"name": f"{name} kernel", "symbol": name} for name in KERNELS},
    }
    manifest = {"format": FORMAT, "version": VERSION, "producer": "handmade", "name": "tiny", "programs": [program]}
    return Package(manifest, weights, b"{}", objects)


def make_engine() -> Engine:
    return Engine(make_package())


def expected(x: np.ndarray) -> np.ndarray:
    return (x * np.float32(2) + np.arange(COLUMNS, dtype=np.float32)) * np.float32(2)


def compile_text(text: str) -> bytes:
    """The object file of LLVM text for this machine."""
    module = llvm.parse_assembly(text, context=llvm.create_context())
    module.verify()
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        reloc="pic",
        codemodel="small",
    )
    return machine.emit_object(module)
