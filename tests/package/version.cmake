# A consumer that wants a version with another interface is told so at configuration.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
execute_process(
  COMMAND ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/cpp -B ${STAGE}/version -G ${GENERATOR}
          -DCMAKE_PREFIX_PATH=${STAGE}/moved -DWANTED=999.0
  RESULT_VARIABLE result ERROR_VARIABLE words OUTPUT_QUIET)
if(result EQUAL 0 OR NOT words MATCHES "tandem-config.cmake, version: [0-9]")
  message(FATAL_ERROR "find_package(tandem 999.0) has to fail with the versions it found, but gave ${result}:\n${words}")
endif()
