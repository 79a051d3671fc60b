// A kernel on its way into a stream.
#pragma once

namespace tandem::hw {

struct Launch {
  const void* handle;
  int blocks, threads, shared_bytes;
  bool early;  ///< may begin before the kernel ahead of it in the stream has ended; it waits by itself
};

}  // namespace tandem::hw
