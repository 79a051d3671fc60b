# The C++ example as a project of its own, through find_package.
include(${CMAKE_CURRENT_LIST_DIR}/run.cmake)
set(project ${STAGE}/cpp_consumer)
run(ignored ${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/cpp -B ${project} -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX}
    -DCMAKE_PREFIX_PATH=${STAGE}/moved -DWANTED=${VERSION} -DEXAMPLE=${EXAMPLE})
run(ignored ${CMAKE_COMMAND} --build ${project})
run(words ${project}/consumer)
expect_equal("the example's output" "${words}" "${example_says}")
