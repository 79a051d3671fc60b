#include "tests/api/c_header.h"

#include <stdlib.h>

#include <tandem/study.h>

size_t size_of_forward_args_in_c(void) { return sizeof(tandem_forward_args); }
size_t size_of_info_in_c(void) { return sizeof(tandem_info); }
size_t offset_of_softcap_in_c(void) { return offsetof(tandem_forward_args, softcap); }
size_t size_of_decode_args_in_c(void) { return sizeof(tandem_decode_args); }
size_t size_of_cache_in_c(void) { return sizeof(tandem_cache); }
size_t size_of_study_in_c(void) { return sizeof(struct tandem_study); }

tandem_status smallest_forward_in_c(float* o) {
  float q[8] = {1}, k[8] = {2}, v[8] = {3, 1, 4, 1, 5, 9, 2, 6};
  const tandem_tensor row = {q, TANDEM_FP32, {1, 1, 1, 8}, {8, 8, 8, 1}};
  const tandem_mask mask = {sizeof(mask), TANDEM_MASK_WINDOW, TANDEM_UNLIMITED, 0, 0};
  tandem_forward_args args = {
      .struct_size = sizeof(args), .q = row, .k = row, .v = row, .o = row, .mask = &mask};
  args.k.data = k;
  args.v.data = v;
  args.o.data = o;

  size_t bytes = 0, plan_bytes = 1;
  tandem_status status = tandem_forward_plan_size(&args, &plan_bytes);
  if (status == TANDEM_OK) status = tandem_forward_plan(&args, NULL, plan_bytes, NULL);
  if (status == TANDEM_OK) status = tandem_forward_workspace(&args, &bytes);
  if (status != TANDEM_OK) return status;
  void* workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
  status = tandem_forward(&args, workspace, bytes, NULL);
  free(workspace);
  return status;
}

tandem_status smallest_decode_in_c(float* o, float* v_cache) {
  static float q[8] = {1}, k[8] = {2}, v[8] = {3, 1, 4, 1, 5, 9, 2, 6}, k_cache[8];
  const int32_t lengths[1] = {0};
  const tandem_tensor row = {q, TANDEM_FP32, {1, 1, 1, 8}, {8, 8, 8, 1}};
  tandem_decode_args args = {.struct_size = sizeof(args), .q = row, .k_new = row, .v_new = row, .o = row};
  tandem_cache cache = {.struct_size = sizeof(cache), .k = row, .v = row, .lengths = lengths};
  cache.k.data = k_cache;
  cache.v.data = v_cache;
  args.cache = &cache;
  args.k_new.data = k;
  args.v_new.data = v;
  args.o.data = o;
  const tandem_mask mask = {.struct_size = sizeof(mask), .kind = TANDEM_MASK_CAUSAL};
  args.mask = &mask;

  size_t bytes = 0, plan_bytes = 1;
  tandem_status status = tandem_decode_plan_size(&args, &plan_bytes);
  if (status == TANDEM_OK) status = tandem_decode_plan(&args, NULL, plan_bytes, NULL);
  if (status == TANDEM_OK) status = tandem_decode_workspace(&args, &bytes);
  if (status != TANDEM_OK) return status;
  void* workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
  status = tandem_decode(&args, workspace, bytes, NULL);
  free(workspace);
  return status;
}
