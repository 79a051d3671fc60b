// The kernel that lists the tiles of variable lengths.
#include "forward/kernels.h"
#include "forward/tile_list.h"

namespace tandem::forward {
namespace {

__global__ void __launch_bounds__(tile_list_threads)
    list_trampoline(const __grid_constant__ ForwardArguments args, int tile_queries) {
  list_tiles(args, tile_queries);
}

}  // namespace

const void* list_kernel_handle() { return reinterpret_cast<const void*>(&list_trampoline); }

}  // namespace tandem::forward
