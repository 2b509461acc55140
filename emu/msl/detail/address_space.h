// The address space words of the language. Two modes from one text:
//   execute  the words vanish; memory is told apart at run time, by address
//   check    (MOEBLAS_EMU_CHECK, syntax only) the words are address space attributes, so that a
//            pointer of one space is refused where another is wanted
#pragma once

#if defined(MOEBLAS_EMU_CHECK)
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2))) const
#define threadgroup __attribute__((address_space(3)))
#else
#define device
#define constant const
#define threadgroup
#endif
#define thread
#define kernel
