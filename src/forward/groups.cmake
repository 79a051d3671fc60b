# The groups of table.h.
set(groups ListGroup AppendGroup)
foreach(head_dim 64 96 128 192 256)
  list(APPEND groups "Group<${head_dim}, Purpose::best>" "Group<${head_dim}, Purpose::varlen>")
  list(APPEND study_groups "Group<${head_dim}, Purpose::study>")
endforeach()
list(APPEND groups "Group<512, Purpose::best>")
foreach(head_dim 192)
  list(APPEND groups "Group<${head_dim}, Purpose::narrow_values>")
endforeach()
foreach(head_dim 64 128 256)
  list(APPEND groups "Group<${head_dim}, Purpose::eight_bit>" "Group<${head_dim}, Purpose::sparse>"
       "Group<${head_dim}, Purpose::int8>")
endforeach()
