/* SPDX-License-Identifier: Apache-2.0
 *
 * A program of version 0.2: one forward call and one decoding step with everything that their structs have.
 * Each struct ends where memory ends, so that a library that reads further crashes it.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <tandem/tandem.h>

static void expect(int holds, const char* what) {
  if (holds) return;
  fprintf(stderr, "%s; %s\n", what, tandem_last_error());
  exit(1);
}

/* A zeroed struct of `size` bytes, whose first field is its size, before memory that can't be read. */
static void* at_the_end_of_memory(size_t size) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  char* pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(pages != MAP_FAILED && size <= page, "no memory");
  expect(mprotect(pages + page, page, PROT_NONE) == 0, "no protected memory");
  memcpy(pages + page - size, &size, sizeof(size));
  return pages + page - size;
}

#define NEW(type) ((type*)at_the_end_of_memory(sizeof(type)))

static tandem_mask* causal(void) {
  tandem_mask* mask = NEW(tandem_mask);
  mask->kind = TANDEM_MASK_WINDOW;
  mask->window_left = TANDEM_UNLIMITED;
  return mask;
}

/* Two tokens: the first sees itself only, so that its output is its value, and its lse its score. */
static void forward(void) {
  float q[16] = {1}, k[16] = {2}, v[16], o[16], lse[2];
  const tandem_tensor rows = {NULL, TANDEM_FP32, {1, 2, 1, 8}, {16, 8, 8, 1}};
  tandem_forward_args* args = NEW(tandem_forward_args);
  for (int i = 0; i < 16; ++i) v[i] = (float)i;
  args->backend = TANDEM_BACKEND_REFERENCE;
  args->q = args->k = args->v = args->o = rows;
  args->q.data = q, args->k.data = k, args->v.data = v, args->o.data = o;
  args->lse = (tandem_tensor){lse, TANDEM_FP32, {1, 2, 1, 1}, {2, 1, 1, 1}};
  args->mask = causal();
  args->scale = 3;
  args->softcap = 10;
  expect(tandem_forward(args, NULL, 0, NULL) == TANDEM_OK, "tandem_forward failed");
  for (int i = 0; i < 8; ++i) expect(o[i] == v[i], "the first token's output is not its value");
  expect(fabsf(lse[0] - 10 * tanhf(0.6f)) < 1e-4f, "lse is not the score with its cap");
}

/* One token, rotated by no angle, is appended to an empty sequence in the second of two pages of four. */
static void decode(void) {
  float q[16] = {1}, k[16] = {2}, v[16], o[16], k_cache[128] = {0}, v_cache[128] = {0};
  float cos[8] = {1, 1, 1, 1, 1, 1, 1, 1}, sin[8] = {0};
  const int32_t pages[2] = {0, 1}, lengths[1] = {0}, index[1] = {1};
  const tandem_tensor row = {NULL, TANDEM_FP32, {1, 1, 1, 16}, {16, 16, 16, 1}};
  tandem_decode_args* args = NEW(tandem_decode_args);
  tandem_cache* cache = NEW(tandem_cache);
  tandem_rotary* rotary = NEW(tandem_rotary);
  for (int i = 0; i < 16; ++i) v[i] = (float)i;
  cache->k = cache->v = (tandem_tensor){NULL, TANDEM_FP32, {2, 4, 1, 16}, {64, 16, 16, 1}};
  cache->k.data = k_cache, cache->v.data = v_cache;
  cache->page_table = pages;
  cache->page_table_stride = cache->pages_per_sequence = 1;
  cache->lengths = lengths;
  cache->batch_index = index;
  rotary->cos = cos;
  rotary->sin = sin;
  rotary->dtype = TANDEM_FP32;
  rotary->positions = 1;
  rotary->dim = 16;
  rotary->interleaved = 1;
  args->backend = TANDEM_BACKEND_REFERENCE;
  args->q = args->k_new = args->v_new = args->o = row;
  args->q.data = q, args->k_new.data = k, args->v_new.data = v, args->o.data = o;
  args->cache = cache;
  args->rotary = rotary;
  args->mask = causal();
  expect(tandem_decode(args, NULL, 0, NULL) == TANDEM_OK, "tandem_decode failed");
  for (int i = 0; i < 16; ++i) {
    expect(o[i] == v[i], "the output is not the value");
    expect(k_cache[64 + i] == k[i] && v_cache[64 + i] == v[i], "the token is not in its page");
    expect(k_cache[i] == 0 && v_cache[i] == 0, "another page was written");
  }
}

static void info(void) {
  tandem_info* about = NEW(tandem_info);
  expect(tandem_get_info(about) == TANDEM_OK, "tandem_get_info failed");
  expect(about->cpu_threads >= 1, "no threads");
}

int main(void) {
  forward();
  decode();
  info();
  return 0;
}
