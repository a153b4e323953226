"""Models for other runtimes: `papm.export.export_onnx("runs/first", "model.onnx")`."""

from papm.export.onnx import check_onnx, export_onnx, onnx_metadata

__all__ = ["check_onnx", "export_onnx", "onnx_metadata"]
