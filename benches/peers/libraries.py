"""Finds the libraries and their versions: FlashInfer, even if packages are absent that it imports for operations which
are not measured here; and FlashAttention-3 as vLLM ships it."""
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import os
import pathlib
import sys
import types

# Packages that FlashInfer imports for operations that are not measured here.
OPTIONAL = ("cutlass", "cutile_cache", "nccl4py", "nccl_extensions", "cudnn", "cuda.tile", "pynvml", "tqdm",
            "flashinfer.fused_moe", "flashinfer.gemm", "flashinfer.cute_dsl", "flashinfer.moe_ep",
            "flashinfer.experimental", "flashinfer.comm")
FA3_LIBRARY = "_vllm_fa3_C.abi3.so"
FA3_PLACES = (FA3_LIBRARY, "vllm/vllm_flash_attn/" + FA3_LIBRARY)


class Missing(Exception):
    """A library that is not there; the message says what was looked for."""


class StandInType(type):
    """The class of stand-ins: attributes of their classes are stand-ins too, as those of instances are."""
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __or__(cls, _):
        return cls

    __ror__ = __or__

    def __getitem__(cls, _):
        return cls


class StandIn(metaclass=StandInType):
    """Takes any name's place in an absent package, so that modules which mention it can be imported: as a
    value, a base class, a decorator or an annotation."""
    def __init__(self, *_, **__):
        pass

    def __call__(self, *arguments, **keywords):
        plain_decorator = len(arguments) == 1 and not keywords and callable(arguments[0])
        return arguments[0] if plain_decorator else StandIn()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn()

    def __mro_entries__(self, _):
        return (StandIn,)

    def __iter__(self):
        return iter(())

    def _same(self, *_):
        return self

    __getitem__ = __or__ = __ror__ = __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _same
    __floordiv__ = __truediv__ = __neg__ = _same


class StandInModule(types.ModuleType):
    def __getattr__(self, name):
        if name == "__version__":
            return "0"
        if name.startswith("__"):
            raise AttributeError(name)
        return StandInType(name, (StandIn,), {}) if name[0].isupper() else StandIn()


class StandInFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last: answers for optional packages that nothing else has."""
    def find_spec(self, name, path=None, target=None):
        for optional in OPTIONAL:
            if name == optional or name.startswith(optional + "."):
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec):
        module = StandInModule(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module):
        pass


class FlashInfer:
    """FlashInfer's modules by name, imported on first use. `__init__.py` of the package, which imports
    everything, does not run."""
    name = "flashinfer"

    def __init__(self):
        spec = importlib.machinery.PathFinder.find_spec("flashinfer")
        if spec is None or not spec.submodule_search_locations:
            raise Missing("the Python package flashinfer is not on the path")
        # The norms in the CuTe DSL need a package that may be absent; those in CUDA do the same.
        os.environ.setdefault("FLASHINFER_USE_CUDA_NORM", "1")
        os.environ.setdefault("FLASHINFER_LOGGING_LEVEL", "error")
        sys.meta_path.append(StandInFinder())
        package = sys.modules.setdefault("flashinfer", types.ModuleType("flashinfer"))
        package.__path__, package.__spec__ = list(spec.submodule_search_locations), spec
        self.version = package.__version__ = importlib.import_module("flashinfer.version").__version__

    def module(self, name):
        return importlib.import_module("flashinfer." + name)


class FlashAttention3:
    """The operators of FlashAttention-3 in vLLM's build of it. Its Python code is not needed."""
    name = "flash-attention-3"

    def __init__(self, torch, version=None):
        paths = (pathlib.Path(entry or ".") / place for entry in sys.path for place in FA3_PLACES)
        found = next(filter(pathlib.Path.is_file, paths), None)
        if found is None:
            raise Missing(f"no {' or '.join(FA3_PLACES)} under any entry of the Python path")
        torch.ops.load_library(str(found))
        self._operators = torch.ops._vllm_fa3_C
        self.version = version or _vllm_version()

    def forward(self, q, k, v, out, q_indptr, kv_lengths, longest_q, longest_kv, page_table, schedule,
                kv_indptr=None):
        """Causal attention over a paged cache, or over keys and values in one piece, of which `kv_indptr` says where
        each sequence begins. `schedule` is what plan() returned; if it is None, the kernel makes one in each launch."""
        scale = q.shape[-1] ** -0.5
        return self._operators.fwd(
            q, k, v, None, None, None, out, q_indptr, kv_indptr, None, None, kv_lengths, longest_q, longest_kv,
            page_table, None, None, None, None, None, None, None, None, scale, True, -1, -1, 0.0, True,
            schedule, 0, None, 0, None, 1, 0, None)[0]

    def plan(self, batch, longest_q, longest_kv, q_heads, kv_heads, head_dim, dtype, kv_lengths, page_size):
        return self._operators.get_scheduler_metadata(
            batch, longest_q, longest_kv, q_heads, kv_heads, head_dim, head_dim, dtype, kv_lengths, None, None,
            None, None, None, page_size, 0, True, -1, -1, False, 0, None, 0)


def _vllm_version():
    try:
        return "vllm " + importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def open_libraries(torch, wanted, fa3_version=None):
    """The libraries of the peers named in `wanted`, by peer name, and why others of them are missing."""
    libraries, missing = {}, {}
    for peer in wanted:
        try:
            if peer == "flashinfer":
                libraries[peer] = FlashInfer()
            elif peer == "fa3":
                libraries[peer] = FlashAttention3(torch, fa3_version)
            elif peer == "cudnn":
                if (number := torch.backends.cudnn.version()) is None:
                    raise Missing("this PyTorch has no cuDNN")
                libraries[peer] = types.SimpleNamespace(name="cudnn", version=version_text(number))
            else:
                libraries[peer] = types.SimpleNamespace(name="torch", version=torch.__version__)
        except Missing as error:
            missing[peer] = str(error)
        except Exception as error:  # a library that cannot be loaded leaves the others
            missing[peer] = f"{type(error).__name__}: {error}"
    return libraries, missing


def version_text(number):
    """cuDNN's version number as text: 91900 is 9.19.0."""
    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
