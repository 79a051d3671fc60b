# run(OUTPUT command...): runs a command, stops with its output where it fails, and else returns its output.
function(run output)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE words ERROR_VARIABLE words)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\nfailed (${result}):\n${words}")
  endif()
  set(${output} "${words}" PARENT_SCOPE)
endfunction()

set(example_says "every value is 2, and so is their average: 2\n")

# expect_equal(WHAT actual expected)
function(expect_equal what actual expected)
  if(NOT "${actual}" STREQUAL "${expected}")
    message(FATAL_ERROR "${what} is \"${actual}\", not \"${expected}\"")
  endif()
endfunction()
