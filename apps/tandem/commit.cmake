# Writes ${OUTPUT} with the commit of ${SOURCE}; touches it only when that has changed.
find_package(Git QUIET)
set(commit "")
if(GIT_FOUND)
  execute_process(
    COMMAND ${GIT_EXECUTABLE} -C ${SOURCE} describe --always --dirty --abbrev=10 --match=
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
endif()
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#pragma once\n#define TANDEM_COMMIT \"${commit}\"\n" @ONLY)
