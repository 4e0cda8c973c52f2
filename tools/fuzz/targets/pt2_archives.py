"""Files of torch.export with changed JSON, changed bytes and pickles in place of members: none runs anything."""

from __future__ import annotations

import copy
import json
import pickle
import random
import zipfile
from pathlib import Path
from typing import Any

from tools.fuzz.target import Base, Failed

RUN = "__import__('pathlib').Path('MARK').touch()"
HOSTILE: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1,
    9,
    2**31,
    2**63,
    10**30,
    1.5,
    "",
    "x",
    "x.y",
    RUN,
    f"x\n{RUN}",
    f'"+{RUN}+"',
    "9**9**9",
    "s0",
    "u9999999",
    "torch.load",
    "torch.ops.aten.save.default",
    "torch.ops.aten.add.Tensor",
    "_operator.mul",
    "torch.os.system",
    [],
    {},
    [[]],
    {"as_int": 1},
    {"as_expr": {"expr_str": RUN}},
    {"as_name": "x"},
    {"as_tensor": {"name": "x"}},
    "\ud800",
    "\0",
)


class Touch:
    """Pickled, a program that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


class Archives(Base):
    def prepare(self, folder: Path) -> None:
        import torch

        class Model(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.layer = torch.nn.Linear(4, 4)

            def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
                return {"y": self.layer(x).reshape(x.shape[0] * 2, 2) + torch.tensor([1.0, 2.0])}

        batch = torch.export.Dim("batch", min=2, max=64)
        program = torch.export.export(Model().eval(), (torch.randn(4, 4),), dynamic_shapes={"x": {0: batch}})
        source, self.mark = folder / "model.pt2", folder / "MARK"
        torch.export.save(program, source)
        with zipfile.ZipFile(source) as archive:
            self.members = {info.filename: archive.read(info) for info in archive.infolist()}
        self.texts = {name: json.loads(data) for name, data in self.members.items() if name.endswith(".json")}
        self.path = folder / "case.pt2"

    def run(self, seed: int) -> str:
        from tilewright.importers.torch_export import import_program, load_program

        draw = random.Random(seed)
        members = dict(self.members)
        for _ in range(draw.choice((1, 1, 2))):
            kind = draw.random()
            if kind < 0.85:
                name = draw.choice(
                    ("model.json", "model.json", "model.json", "weights_config.json", "constants_config.json")
                )
                name = next(entry for entry in self.texts if entry.endswith(name))
                text = copy.deepcopy(self.texts[name])
                self._change(draw, text)
                members[name] = json.dumps(text).encode()
            elif kind < 0.95:
                name = draw.choice(list(members))
                members[name] = draw.choice((pickle.dumps(Touch(self.mark)), b"", draw.randbytes(40)))
            else:
                del members[draw.choice(list(members))]
        with zipfile.ZipFile(self.path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        try:
            program = load_program(str(self.path))
            if draw.random() < 0.05:
                import_program(program)
        finally:
            if self.mark.exists() or Path("MARK").exists():
                raise Failed("ran", "the file ran a program")
        return "loaded"

    def _change(self, draw: random.Random, value: Any) -> None:
        """Replace, remove or double one entry, anywhere in the tree."""
        places: list[tuple[Any, Any]] = []
        pending = [value]
        while pending:
            node = pending.pop()
            entries = list(node.items()) if isinstance(node, dict) else list(enumerate(node))
            places += [(node, key) for key, _ in entries]
            pending += [entry for _, entry in entries if isinstance(entry, (dict, list))]
        node, key = draw.choice(places)
        kind = draw.random()
        if kind < 0.75:
            node[key] = copy.deepcopy(draw.choice(HOSTILE))
        elif kind < 0.9:
            del node[key]
        elif isinstance(node, dict):
            node[draw.choice(("x", RUN, "as_int", "name", f"x\n{RUN}"))] = node.pop(key)
        else:
            node.append(copy.deepcopy(node[key]))


TARGET = Archives()
