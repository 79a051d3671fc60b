/* How C sees the header: c_header.c is compiled as strict C11. */
#pragma once

#include <tandem/tandem.h>

#ifdef __cplusplus
extern "C" {
#endif

size_t size_of_forward_args_in_c(void);
size_t size_of_info_in_c(void);
size_t offset_of_softcap_in_c(void);
size_t size_of_decode_args_in_c(void);
size_t size_of_cache_in_c(void);
size_t size_of_study_in_c(void);
/* Runs one query against one key in C alone; o gets v. */
tandem_status smallest_forward_in_c(float* o);
/* Appends one token to an empty cache and attends to it; o and the cache get its value. */
tandem_status smallest_decode_in_c(float* o, float* v_cache);

#ifdef __cplusplus
}
#endif
