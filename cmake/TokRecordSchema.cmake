# tokline_write_rules(<target>): gives <target>, and what links it, tokline_rules.h with the numbers of
#   harness/record/record.schema.json.
# tokline_embed_record_schema(<target>): compiles that file into <target>.

set(TOKLINE_RECORD_DIR "${PROJECT_SOURCE_DIR}/harness/record")
set(TOKLINE_RECORD_SCHEMA "${TOKLINE_RECORD_DIR}/record.schema.json")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${TOKLINE_RECORD_SCHEMA}")

function(tokline_write_rules target)
  file(READ "${TOKLINE_RECORD_SCHEMA}" schema)
  set(percent "properties|percent_of_measured_peak|maximum")
  set(regret "properties|verified|properties|mean_regret|maximum")
  foreach(place IN ITEMS "record_schema|properties|schema|const"
      "min_samples|$defs|kernel_figures|properties|samples_us|minItems"
      "max_percent_of_peak|$defs|shares|allOf|0|then|${percent}"
      "max_mean_regret|$defs|decoder_figures|${regret}")
    string(REPLACE "|" ";" place "${place}")
    list(POP_FRONT place name)
    string(JSON ${name} GET "${schema}" ${place})
  endforeach()
  string(JSON count LENGTH "${schema}" x-rules)
  math(EXPR last "${count} - 1")
  foreach(i RANGE ${last})
    string(JSON name MEMBER "${schema}" x-rules ${i})
    string(JSON ${name} GET "${schema}" x-rules ${name})
  endforeach()
  string(REPLACE "[" "{" rest_shares "${rest_shares}")
  string(REPLACE "]" "}" rest_shares "${rest_shares}")
  configure_file("${TOKLINE_RECORD_DIR}/rules.h.in" "${PROJECT_BINARY_DIR}/rules/tokline_rules.h" @ONLY)
  target_include_directories(${target} PUBLIC "${PROJECT_BINARY_DIR}/rules")
endfunction()

function(tokline_embed_record_schema target)
  file(READ "${TOKLINE_RECORD_SCHEMA}" schema)
  set(source "${PROJECT_BINARY_DIR}/generated/record_schema.cc")
  configure_file("${TOKLINE_RECORD_DIR}/record_schema.cc.in" "${source}" @ONLY)
  target_sources(${target} PRIVATE "${source}")
endfunction()
