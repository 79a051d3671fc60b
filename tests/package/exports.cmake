# The shared library shows the C interface of its header and nothing else.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
run(words ${NM} -D --defined-only --format=posix ${STAGE}/moved/${LIBDIR}/libtandem.so)
string(REGEX MATCHALL "[^\n]+" lines "${words}")
list(TRANSFORM lines REPLACE " .*" "" OUTPUT_VARIABLE shown)
list(SORT shown)

file(STRINGS ${STAGE}/moved/include/tandem/tandem.h declarations REGEX "^TANDEM_API")
list(TRANSFORM declarations REPLACE "^TANDEM_API .*(tandem_[a-z_]+)\\(.*" "\\1" OUTPUT_VARIABLE declared)
list(SORT declared)
expect_equal("the list of exported symbols" "${shown}" "${declared}")
