"""Models for other runtimes: `papm.export.export_model("runs/first", "model.onnx")`."""

from papm.export.formats import Exported, export_model
from papm.export.onnx import check_onnx, export_onnx, onnx_metadata
from papm.export.package import export_package

__all__ = ["Exported", "check_onnx", "export_model", "export_onnx", "export_package", "onnx_metadata"]
