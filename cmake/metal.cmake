# The Metal backend: whether it is built.
#
#   MOEBLAS_METAL   AUTO: on Apple's systems; ON: required; OFF
set(MOEBLAS_METAL AUTO CACHE STRING "Build the Metal backend: AUTO (on Apple's systems), ON or OFF")
set_property(CACHE MOEBLAS_METAL PROPERTY STRINGS AUTO ON OFF)

set(MOEBLAS_HAS_METAL OFF)
if(APPLE AND (MOEBLAS_METAL STREQUAL AUTO OR MOEBLAS_METAL))
  set(MOEBLAS_HAS_METAL ON)
  # The device that the system chooses is found by way of CoreGraphics.
  set(MOEBLAS_METAL_FRAMEWORKS
    "-framework Foundation" "-framework Metal" "-framework CoreGraphics")
elseif(NOT MOEBLAS_METAL STREQUAL AUTO AND MOEBLAS_METAL)
  message(FATAL_ERROR "moeblas: MOEBLAS_METAL=ON needs an Apple system (elsewhere the tests run the "
                      "backend against a mock of it)")
endif()
