/* The version of moeblas: the only place where it is written (the build reads it from here). */
#ifndef MOEBLAS_VERSION_H
#define MOEBLAS_VERSION_H

#define MOEBLAS_VERSION_MAJOR 0
#define MOEBLAS_VERSION_MINOR 1
#define MOEBLAS_VERSION_PATCH 0
#define MOEBLAS_VERSION_STRING "0.1.0"

#endif
