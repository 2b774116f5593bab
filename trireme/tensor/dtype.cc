#include "trireme/tensor/dtype.h"

#include "absl/strings/str_cat.h"
#include "trireme/base/status.h"

namespace trireme {
namespace {

struct Entry {
  uint8_t code;
  c10::ScalarType dtype;
  const char* name;
};

using c10::ScalarType;

// Append only: codes are part of the wire and file formats (docs/wire.md).
constexpr Entry kDtypes[] = {
    {1, ScalarType::Bool, "bool"},
    {2, ScalarType::Byte, "uint8"},
    {3, ScalarType::Char, "int8"},
    {4, ScalarType::UInt16, "uint16"},
    {5, ScalarType::Short, "int16"},
    {6, ScalarType::UInt32, "uint32"},
    {7, ScalarType::Int, "int32"},
    {8, ScalarType::UInt64, "uint64"},
    {9, ScalarType::Long, "int64"},
    {10, ScalarType::Half, "float16"},
    {11, ScalarType::BFloat16, "bfloat16"},
    {12, ScalarType::Float, "float32"},
    {13, ScalarType::Double, "float64"},
    {14, ScalarType::ComplexHalf, "complex32"},
    {15, ScalarType::ComplexFloat, "complex64"},
    {16, ScalarType::ComplexDouble, "complex128"},
    {17, ScalarType::Float8_e5m2, "float8_e5m2"},
    {18, ScalarType::Float8_e4m3fn, "float8_e4m3fn"},
    {19, ScalarType::Float8_e5m2fnuz, "float8_e5m2fnuz"},
    {20, ScalarType::Float8_e4m3fnuz, "float8_e4m3fnuz"},
    {21, ScalarType::Float8_e8m0fnu, "float8_e8m0fnu"},
    {22, ScalarType::Float4_e2m1fn_x2, "float4_e2m1fn_x2"},
    {23, ScalarType::Bits8, "bits8"},
    {24, ScalarType::Bits16, "bits16"},
    {25, ScalarType::Bits1x8, "bits1x8"},
    {26, ScalarType::Bits2x4, "bits2x4"},
    {27, ScalarType::Bits4x2, "bits4x2"},
};

}  // namespace

absl::StatusOr<uint8_t> dtype_to_wire(c10::ScalarType dtype) {
  for (const Entry& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.code;
  }
  return make_status(ErrorCode::kInvalidArgument,
                     absl::StrCat("a tensor of dtype ", dtype_name(dtype),
                                  " cannot be sent; send its int_repr() or dequantize() it"));
}

absl::StatusOr<c10::ScalarType> dtype_from_wire(uint8_t code) {
  for (const Entry& entry : kDtypes) {
    if (entry.code == code) return entry.dtype;
  }
  return make_status(ErrorCode::kInvalidArgument, absl::StrCat("unknown dtype code ", code));
}

std::string dtype_name(c10::ScalarType dtype) {
  for (const Entry& entry : kDtypes) {
    if (entry.dtype == dtype) return entry.name;
  }
  return c10::toString(dtype);
}

}  // namespace trireme
