/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include <tandem/tandem.h>

static float q[1024 * 8 * 64], k[1024 * 8 * 64], v[1024 * 8 * 64], o[1024 * 8 * 64];

static tandem_tensor view(float* data) { /* batch 1, sequence 1024, 8 heads, head dim 64; contiguous */
  return (tandem_tensor){data, TANDEM_FP32, {1, 1024, 8, 64}, {1024 * 8 * 64, 8 * 64, 64, 1}};
}

int main(void) {
  const tandem_mask causal = {.struct_size = sizeof causal, .kind = TANDEM_MASK_CAUSAL};
  tandem_forward_args args = {.struct_size = sizeof args, .mask = &causal};
  args.q = view(q), args.k = view(k), args.v = view(v), args.o = view(o);
  for (int i = 0; i < 1024 * 8 * 64; ++i) v[i] = 2;

  size_t bytes = 0;
  tandem_status status = tandem_forward_workspace(&args, &bytes);
  void* workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
  if (status == TANDEM_OK) status = tandem_forward(&args, workspace, bytes, NULL);
  if (status != TANDEM_OK) fprintf(stderr, "%s: %s\n", tandem_status_name(status), tandem_last_error());
  if (status == TANDEM_OK) printf("every value is 2, and so is their average: %g\n", o[0]);
  free(workspace);
  return status;
}
