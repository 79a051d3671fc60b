# The C example, compiled with what pkg-config says.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
set(ENV{PKG_CONFIG_PATH} ${STAGE}/moved/${LIBDIR}/pkgconfig)
run(version ${PKG_CONFIG} --modversion tandem)
expect_equal("the version of tandem.pc" "${version}" "${VERSION}\n")
run(flags ${PKG_CONFIG} --cflags --libs tandem)
separate_arguments(flags UNIX_COMMAND "${flags}")
run(ignored ${CC} -std=c11 -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Werror ${EXAMPLE} ${flags}
    -Wl,-rpath,${STAGE}/moved/${LIBDIR} -o ${STAGE}/c_consumer)
run(words ${STAGE}/c_consumer)
expect_equal("the example's output" "${words}" "${example_says}")
