// What the calls here use of DLPack 1's C exchange interface, field by field as its specification has it
// (https://dmlc.github.io/dlpack): how the objects of an array framework show their memory without Python.
#pragma once

#include <cstdint>

namespace tandem::native {

struct Device {
  std::int32_t type, id;
};

inline constexpr std::int32_t device_cpu = 1, device_cuda = 2, device_cuda_host = 3;

struct DataType {
  std::uint8_t code, bits;
  std::uint16_t lanes;
};

inline constexpr std::uint8_t type_int = 0, type_uint = 1, type_float = 2, type_bfloat = 4,
                              type_float8_e4m3fn = 10;

struct View {
  void* data;
  Device device;
  std::int32_t ndim;
  DataType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  ///< in elements
  std::uint64_t byte_offset;
};

struct Managed {
  std::uint32_t major, minor;
  void* context;
  void (*deleter)(Managed*);
  std::uint64_t flags;
  View view;
};

using SetError = void (*)(void* context, const char* kind, const char* message);

/// The framework's functions, behind its tensor type's __dlpack_c_exchange_api__. All return 0, or -1.
struct Exchange {
  std::uint32_t major, minor;
  Exchange* older;
  int (*allocate)(View* like, Managed** memory, void* context, SetError set_error);
  int (*managed_of)(void* object, Managed** out);
  int (*object_of)(Managed* memory, void** object);
  int (*view_of)(void* object, View* out);
  int (*current_stream)(std::int32_t type, std::int32_t id, void** stream);
};

}  // namespace tandem::native
