"""The runtime's own native functions, as LLVM text: how the instances of a grid are shared by workers.

A **team** is the memory through which the workers of one run meet: one thread (the first to enter) runs
the body, which is a whole plan or one launch, and publishes jobs; every other thread that enters takes
parts of the current job until the body has ended.  Nobody ever waits for a thread to arrive: a provider
that delivers fewer threads, or delivers them late or one after another, only makes the run slower.

    word   0   remaining: instances of the job that nobody has taken; a part is taken by compare-and-swap
    word  16   done: instances that are finished
    word  32   entered: threads that came in; the first runs the body, the others get their number
    word  48   closed: 1 when the body has ended
    words 64…  function, arguments, total, workers, scratch, scratch stride, body, context
    words 96…  a lock, a condition, the numbers of sleepers and of members, whether they shall leave: only for a team of
               our own threads
    words 136… stopped: 1 when the run shall end early; when signals were last asked for; where an exception is left
    words 144… claimed and ended: of a job whose grid is walked plane by plane

A run that takes long asks several times a second for signals (`runtime.signals`): the thread that runs the body does.
When a handler raises, parts end at their next slice of instances.  Slices begin with one instance and grow as long as
they take less than about a millisecond.

The job is read only after a part of it was taken, and it can't change before that part is done, so a
thread that slept through several jobs does no harm.  Parts shrink as the job empties (guided
self-scheduling, Polychronopoulos and Kuck 1987).  Counters lie 128 bytes apart: no false sharing.

Grids whose planes follow from each other are jobs too: `runtime.planes`.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from dataclasses import dataclass

import llvmlite.binding as llvm

from tilewright.runtime import planes, signals, tape
from tilewright.runtime.library import NativeLibrary, cached_object, load_objects, system_address

TEAM_BYTES = 1408
_WORDS = {
    "remaining": 0, "done": 16, "entered": 32, "closed": 48, "function": 64, "arguments": 65, "total": 66,
    "workers": 67, "scratch": 68, "stride": 69, "body": 70, "context": 71, "planes": 72, "plane": 73,
    "lock": 96, "condition": 112, "sleepers": 128, "members": 129, "dismissed": 130,
    "stopped": 136, "asked": 137, "raised": 138, "claimed": 144, "ended": 160,
}  # fmt: skip

# Spins before a waiting thread offers its CPU to others, and between two such offers.
_PATIENCE = 2048
_YIELD_EVERY = 64
MEMBERS = 8 * _WORDS["members"]  # offset in bytes of the number of threads that live in a team
# Spins for which a thread of our own team stays awake after a run, waiting for the next; then it sleeps.
_LINGER = 4096
# Ticks (cycles on x86-64, elsewhere nanoseconds) between two questions for signals; a slice of a part that takes fewer
# than the first is followed by a larger one, more than the second by a smaller one.
_ASK_TICKS = 1 << 29
_SHORT_TICKS, _LONG_TICKS = 1 << 20, 1 << 25
IDLE_SECONDS = 5  # after which a sleeping thread ends, where the system has a clock

_GLUE_TEXT = """
{declare_yield}
{declare_pause}

define internal void @wait(i64 %spins) nounwind {{
  {pause}
  %patient = icmp ult i64 %spins, {patience}
  br i1 %patient, label %out, label %impatient
impatient:
  %phase = and i64 %spins, {yield_mask}
  %now = icmp eq i64 %phase, 0
  br i1 %now, label %give, label %out
give:
  {give}
  br label %out
out:
  ret void
}}

; Calls Python's handlers of signals that came, if it is time, and stops the run when one raises.
define internal void @ask(ptr %team, i64 %now) nounwind {{
entry:
  {asked_l}
  %since = sub i64 %now, %asked
  %early = icmp ult i64 %since, {ask_ticks}
  br i1 %early, label %out, label %due
due:
  store atomic i64 %now, ptr %asked.p monotonic, align 8
  {raised_l}
  %came = call i1 @signals(ptr %raised)
  br i1 %came, label %stop, label %out
stop:
  {stopped_p}
  store atomic i64 1, ptr %stopped.p monotonic, align 8
  br label %out
out:
  ret void
}}

; Runs instances in slices, between which a run may be stopped; what is left is then left out.
define internal void @run_part(ptr %team, i64 %index, ptr %function, ptr %arguments, ptr %scratch, i64 %begin,
                               i64 %end) nounwind {{
entry:
  {stopped_p}
  %leads = icmp eq i64 %index, 0
  %start = call i64 @ticks()
  br label %slice
slice:
  %first = phi i64 [ %begin, %entry ], [ %last, %on ]
  %size = phi i64 [ 1, %entry ], [ %following, %on ]
  %before = phi i64 [ %start, %entry ], [ %after, %on ]
  %stopped = load atomic i64, ptr %stopped.p monotonic, align 8
  %goes = icmp eq i64 %stopped, 0
  br i1 %goes, label %run, label %out
run:
  %left = sub i64 %end, %first
  %fits = icmp ult i64 %size, %left
  %count = select i1 %fits, i64 %size, i64 %left
  %last = add i64 %first, %count
  call void %function(ptr %arguments, ptr %scratch, i64 %first, i64 %last)
  %ended = icmp eq i64 %last, %end
  br i1 %ended, label %out, label %next
next:
  %after = call i64 @ticks()
  %took = sub i64 %after, %before
  %short = icmp ult i64 %took, {short_ticks}
  %long = icmp ugt i64 %took, {long_ticks}
  %more = shl i64 %size, 3
  %half = lshr i64 %size, 1
  %less = call i64 @llvm.umax.i64(i64 %half, i64 1)
  %same = select i1 %long, i64 %less, i64 %size
  %following = select i1 %short, i64 %more, i64 %same
  br i1 %leads, label %asks, label %on
asks:
  call void @ask(ptr %team, i64 %after)
  br label %on
on:
  br label %slice
out:
  ret void
}}

; Takes a part of the current job and runs it; false when nothing is left to take.
define internal i1 @take(ptr %team, i64 %index) nounwind {{
entry:
  {remaining_p}
  {workers_p}
  br label %try
try:
  %remaining = load atomic i64, ptr %remaining.p acquire, align 8
  %none = icmp eq i64 %remaining, 0
  br i1 %none, label %empty, label %size
empty:
  ret i1 false
size:
  %workers = load atomic i64, ptr %workers.p monotonic, align 8
  %twice = shl i64 %workers, 1
  %share = udiv i64 %remaining, %twice
  %small = icmp eq i64 %share, 0
  %count = select i1 %small, i64 1, i64 %share
  %rest = sub i64 %remaining, %count
  %swap = cmpxchg ptr %remaining.p, i64 %remaining, i64 %rest acq_rel monotonic, align 8
  %taken = extractvalue {{ i64, i1 }} %swap, 1
  br i1 %taken, label %run, label %try
run:
  {function_l}
  {arguments_l}
  {total_l}
  {scratch_l}
  {stride_l}
  %place = mul i64 %stride, %index
  %mine = getelementptr i8, ptr %scratch, i64 %place
  %begin = sub i64 %total, %remaining
  %end = add i64 %begin, %count
  {planes_l}
  %flat = icmp eq i64 %planes, 0
  br i1 %flat, label %part, label %walks
part:
  call void @run_part(ptr %team, i64 %index, ptr %function, ptr %arguments, ptr %mine, i64 %begin, i64 %end)
  br label %ran
walks:  ; shares are at most as many as workers, so that it is one
  call void @walk(ptr %team, i64 %index, ptr %function, ptr %arguments, ptr %mine, i64 %begin, i64 %total)
  br label %ran
ran:
  {done_p}
  %before = atomicrmw add ptr %done.p, i64 %count acq_rel, align 8
  ret i1 true
}}

; Runs `total` instances of `function` on all workers of the team; returns when all are finished.
define void @parallel_for(ptr %team, ptr %function, ptr %arguments, i64 %total) nounwind {{
entry:
  %any = icmp sgt i64 %total, 0
  br i1 %any, label %ask, label %out
ask:
  {workers_l}
  %alone = icmp eq i64 %workers, 1
  %one = icmp eq i64 %total, 1
  %inline = or i1 %alone, %one
  br i1 %inline, label %here, label %publish
here:
  {scratch_l}
  call void @run_part(ptr %team, i64 0, ptr %function, ptr %arguments, ptr %scratch, i64 0, i64 %total)
  ret void
publish:
  call void @share(ptr %team, ptr %function, ptr %arguments, i64 %total, i64 0)
  br label %out
out:
  ret void
}}

; Publishes a job, takes parts of it, and waits for the rest.
define internal void @share(ptr %team, ptr %function, ptr %arguments, i64 %total, i64 %planes) nounwind {{
entry:
  {function_s}
  {arguments_s}
  {total_s}
  {planes_s}
  {done_p}
  store atomic i64 0, ptr %done.p monotonic, align 8
  {remaining_p}
  store atomic i64 %total, ptr %remaining.p release, align 8
  br label %work
work:
  %more = call i1 @take(ptr %team, i64 0)
  %taken.at = call i64 @ticks()
  call void @ask(ptr %team, i64 %taken.at)
  br i1 %more, label %work, label %check
check:
  %spins = phi i64 [ 0, %work ], [ %next, %idle ]
  %done = load atomic i64, ptr %done.p acquire, align 8
  %complete = icmp eq i64 %done, %total
  br i1 %complete, label %out, label %idle
idle:
  call void @wait(i64 %spins)
  %next = add i64 %spins, 1
  %waited.at = call i64 @ticks()
  call void @ask(ptr %team, i64 %waited.at)
  br label %check
out:
  ret void
}}

; The same on the calling thread alone, for grids too small to share.
define void @run_here(ptr %team, ptr %function, ptr %arguments, i64 %total) nounwind {{
  %any = icmp sgt i64 %total, 0
  br i1 %any, label %run, label %out
run:
  {scratch_l}
  call void @run_part(ptr %team, i64 0, ptr %function, ptr %arguments, ptr %scratch, i64 0, i64 %total)
  br label %out
out:
  ret void
}}

; A worker: takes parts of jobs until the run is closed and `linger` more spins have passed.
define internal void @serve(ptr %team, i64 %index, i64 %linger) nounwind {{
entry:
  br label %loop
loop:
  %spins = phi i64 [ 0, %entry ], [ %next, %loop.end ]
  %after = phi i64 [ 0, %entry ], [ %after.next, %loop.end ]
  %open = call i1 @is_open(ptr %team)
  br i1 %open, label %work, label %closed
work:
  %worked = call i1 @take(ptr %team, i64 %index)
  br i1 %worked, label %loop.end, label %idle
closed:
  %leave = icmp uge i64 %after, %linger
  br i1 %leave, label %out, label %idle
idle:
  %waited = phi i64 [ 0, %work ], [ %after, %closed ]
  call void @wait(i64 %spins)
  %one.more = add i64 %spins, 1
  %longer = add i64 %waited, 1
  br label %loop.end
loop.end:
  %next = phi i64 [ 0, %work ], [ %one.more, %idle ]
  %after.next = phi i64 [ 0, %work ], [ %longer, %idle ]
  br label %loop
out:
  ret void
}}

; Whether a run goes on.
define internal i1 @is_open(ptr %team) nounwind {{
  {closed_p}
  %closed = load atomic i64, ptr %closed.p acquire, align 8
  %open = icmp eq i64 %closed, 0
  ret i1 %open
}}

define internal void @lead(ptr %team) nounwind {{
  call void @begin(ptr %team)
  {body_l}
  {context_l}
  call void %body(ptr %team, ptr %context)
  {closed_p}
  store atomic i64 1, ptr %closed.p release, align 8
  ret void
}}

; Before the body: nobody has stopped the run, and signals are asked for later.
define internal void @begin(ptr %team) nounwind {{
  %asked = call i64 @ticks()
  {asked_s}
  {stopped_p}
  store atomic i64 0, ptr %stopped.p monotonic, align 8
  ret void
}}

; Behind the body: 2 when the run was stopped, so that an exception is left.
define internal i32 @outcome(ptr %team) nounwind {{
  {stopped_l}
  %flag = trunc i64 %stopped to i32
  %twice = shl i32 %flag, 1
  ret i32 %twice
}}

; What every thread of an OpenMP region, and every iteration of dispatch_apply, runs.
define void @region(ptr %team) nounwind {{
  {entered_p}
  %index = atomicrmw add ptr %entered.p, i64 1 acq_rel, align 8
  %first = icmp eq i64 %index, 0
  br i1 %first, label %leader, label %worker
leader:
  call void @lead(ptr %team)
  ret void
worker:
  call void @serve(ptr %team, i64 %index, i64 0)
  ret void
}}

define void @region_indexed(ptr %team, i64 %iteration) nounwind {{
  call void @region(ptr %team)
  ret void
}}

define internal void @prepare(ptr %team, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 %workers) nounwind {{
  {body_s}
  {context_s}
  {scratch_s}
  {stride_s}
  {workers_s}
  ret void
}}

define internal void @create(ptr %team, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 %workers) nounwind {{
  call void @llvm.memset.p0.i64(ptr %team, i8 0, i64 {team_bytes}, i1 false)
  call void @prepare(ptr %team, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 %workers)
  ret void
}}

; A run on the calling thread alone, of one record: where an exception is left, body, scratch, its stride, and the
; address of the context; where that is 0, the context follows.
define i32 @start_inline(ptr %record) nounwind {{
  %team = alloca [{team_bytes} x i8], align 128
  %words = load {{ptr, ptr, ptr, i64, ptr}}, ptr %record, align 8
  %raised = extractvalue {{ptr, ptr, ptr, i64, ptr}} %words, 0
  %body = extractvalue {{ptr, ptr, ptr, i64, ptr}} %words, 1
  %scratch = extractvalue {{ptr, ptr, ptr, i64, ptr}} %words, 2
  %stride = extractvalue {{ptr, ptr, ptr, i64, ptr}} %words, 3
  %given = extractvalue {{ptr, ptr, ptr, i64, ptr}} %words, 4
  %behind = getelementptr i64, ptr %record, i64 5
  %follows = icmp eq ptr %given, null
  %context = select i1 %follows, ptr %behind, ptr %given
  call void @create(ptr %team, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 1)
  {raised_s}
  call void @begin(ptr %team)
  call void %body(ptr %team, ptr %context)
  %stopped = call i32 @outcome(ptr %team)
  ret i32 %stopped
}}

define i32 @start_openmp(ptr %provider, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 %workers,
                          ptr %raised) nounwind {{
  %team = alloca [{team_bytes} x i8], align 128
  call void @create(ptr %team, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 %workers)
  {raised_s}
  %count = trunc i64 %workers to i32
  call void %provider(ptr @region, ptr %team, i32 %count, i32 0)
  %stopped = call i32 @outcome(ptr %team)
  ret i32 %stopped
}}

define i32 @start_dispatch(ptr %provider, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 %workers,
                          ptr %raised) nounwind {{
  %team = alloca [{team_bytes} x i8], align 128
  call void @create(ptr %team, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 %workers)
  {raised_s}
  call void %provider(i64 %workers, ptr null, ptr %team, ptr @region_indexed)
  %stopped = call i32 @outcome(ptr %team)
  ret i32 %stopped
}}

; Our own threads: the team outlives its runs, so a thread may still linger in it from the run before.  All
; runs of a team have the same number of workers: such a thread's place in the scratch memory always exists.
define i32 @start_team(ptr %team, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 %workers) nounwind {{
entry:
  {lock_p}
  {condition_p}
  {sleepers_p}
  {closed_p}
  call void @tilewright_lock(ptr %lock.p)
  call void @prepare(ptr %team, ptr %body, ptr %context, ptr %scratch, i64 %stride, i64 %workers)
  store atomic i64 0, ptr %closed.p release, align 8
  %sleepers = load i64, ptr %sleepers.p, align 8
  call void @tilewright_unlock(ptr %lock.p)
  %any = icmp ne i64 %sleepers, 0
  br i1 %any, label %wake, label %run
wake:
  call void @tilewright_wake(ptr %condition.p)
  br label %run
run:
  call void @lead(ptr %team)
  %stopped = call i32 @outcome(ptr %team)
  ret i32 %stopped
}}

; The life of one of our own threads: serve, linger, sleep until the next run. Returns when there was none for some
; seconds, or when the team was dismissed.
define void @join_team(ptr %team, i64 %index) nounwind {{
entry:
  {lock_p}
  {condition_p}
  {sleepers_p}
  {members_p}
  {dismissed_p}
  call void @tilewright_lock(ptr %lock.p)
  %joined = load i64, ptr %members.p, align 8
  %joining = add i64 %joined, 1
  store atomic i64 %joining, ptr %members.p monotonic, align 8
  call void @tilewright_unlock(ptr %lock.p)
  br label %serve
serve:
  call void @serve(ptr %team, i64 %index, i64 {linger})
  call void @tilewright_lock(ptr %lock.p)
  br label %check
check:
  %late = phi i1 [ false, %serve ], [ %timed.out, %sleep ]
  %open = call i1 @is_open(ptr %team)
  br i1 %open, label %awake, label %closed
closed:
  %dismissed = load i64, ptr %dismissed.p, align 8
  %unwanted = icmp ne i64 %dismissed, 0
  %leaves = or i1 %late, %unwanted
  br i1 %leaves, label %leave, label %sleep
sleep:
  %before = load i64, ptr %sleepers.p, align 8
  %more = add i64 %before, 1
  store i64 %more, ptr %sleepers.p, align 8
  %timed.out = call i1 @tilewright_sleep(ptr %condition.p, ptr %lock.p)
  %during = load i64, ptr %sleepers.p, align 8
  %less = sub i64 %during, 1
  store i64 %less, ptr %sleepers.p, align 8
  br label %check
awake:
  call void @tilewright_unlock(ptr %lock.p)
  br label %serve
leave:
  %all = load i64, ptr %members.p, align 8
  %others = sub i64 %all, 1
  store atomic i64 %others, ptr %members.p monotonic, align 8
  call void @tilewright_unlock(ptr %lock.p)
  ret void
}}

; Sends the threads of a team away that nobody runs any more.
define void @dismiss_team(ptr %team) nounwind {{
  {lock_p}
  {condition_p}
  {dismissed_p}
  call void @tilewright_lock(ptr %lock.p)
  store i64 1, ptr %dismissed.p, align 8
  call void @tilewright_unlock(ptr %lock.p)
  call void @tilewright_wake(ptr %condition.p)
  ret void
}}

; A team of our own threads before its first run: closed.
define void @create_team(ptr %team, ptr %raised) nounwind {{
  call void @llvm.memset.p0.i64(ptr %team, i8 0, i64 {team_bytes}, i1 false)
  {raised_s}
  {lock_p}
  {condition_p}
  {closed_p}
  call void @tilewright_create(ptr %lock.p, ptr %condition.p)
  store atomic i64 1, ptr %closed.p release, align 8
  ret void
}}

; The body of a single launch; `context` holds the function, the total and then the arguments themselves.
define void @launch_body(ptr %team, ptr %context) nounwind {{
  %function = load ptr, ptr %context, align 1
  %total.p = getelementptr i64, ptr %context, i64 1
  %total = load i64, ptr %total.p, align 1
  %arguments = getelementptr i64, ptr %context, i64 2
  call void @parallel_for(ptr %team, ptr %function, ptr %arguments, i64 %total)
  ret void
}}

; A launch on the calling thread alone: 1 when the kernel refuses its arguments, 2 when it was stopped. `refuses` is 1
; for a kernel that may.
define i32 @run_alone(ptr %function, ptr %arguments, ptr %scratch, i64 %total, i32 %refuses, ptr %raised) nounwind {{
entry:
  %team = alloca [{team_bytes} x i8], align 128
  %may = icmp ne i32 %refuses, 0
  br i1 %may, label %question, label %run
question:
  %answer = call i32 %function(ptr %arguments, ptr %scratch, i64 0, i64 0)
  %refused = icmp ne i32 %answer, 0
  br i1 %refused, label %back, label %run
back:
  ret i32 1
run:
  {raised_s}
  call void @begin(ptr %team)
  call void @run_part(ptr %team, i64 0, ptr %function, ptr %arguments, ptr %scratch, i64 0, i64 %total)
  %stopped = call i32 @outcome(ptr %team)
  ret i32 %stopped
}}

declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i64 @llvm.umax.i64(i64, i64)
{walks}
{clock}
{ticks}
{signals}
{sleep}
{tape}
"""

# The time in nanoseconds; POSIX's 64-bit `struct timespec` is two words.
_CLOCK = """
declare i32 @clock_gettime(i32, ptr)
define i64 @tilewright_clock() nounwind {{
  %now = alloca [2 x i64], align 8
  %status = call i32 @clock_gettime(i32 {clock_id}, ptr %now)
  %seconds = load i64, ptr %now, align 8
  %rest.p = getelementptr i64, ptr %now, i64 1
  %rest = load i64, ptr %rest.p, align 8
  %scaled = mul i64 %seconds, 1000000000
  %time = add i64 %scaled, %rest
  ret i64 %time
}}
"""
_NO_CLOCK = "define i64 @tilewright_clock() nounwind {\n  ret i64 0\n}"

_TICKS = """
define internal i64 @ticks() nounwind {{
  %now = call i64 @{source}()
  ret i64 %now
}}
"""
_CYCLES = "declare i64 @llvm.readcyclecounter()"
# A lock and a condition, zeroed memory to begin with.
_POSIX_SLEEP = """
declare i32 @pthread_mutex_init(ptr, ptr)
declare i32 @pthread_mutex_lock(ptr)
declare i32 @pthread_mutex_unlock(ptr)
declare i32 @pthread_cond_init(ptr, ptr)
declare i32 @pthread_cond_broadcast(ptr)
define internal void @tilewright_create(ptr %lock, ptr %condition) nounwind {
  %1 = call i32 @pthread_mutex_init(ptr %lock, ptr null)
  %2 = call i32 @pthread_cond_init(ptr %condition, ptr null)
  ret void
}
define internal void @tilewright_lock(ptr %lock) nounwind {
  %1 = call i32 @pthread_mutex_lock(ptr %lock)
  ret void
}
define internal void @tilewright_unlock(ptr %lock) nounwind {
  %1 = call i32 @pthread_mutex_unlock(ptr %lock)
  ret void
}
define internal void @tilewright_wake(ptr %condition) nounwind {
  %1 = call i32 @pthread_cond_broadcast(ptr %condition)
  ret void
}
"""
# Sleeping says whether nothing came for some seconds: by the clock of the time of day, which conditions go by.
_POSIX_WAIT = """
declare i32 @pthread_cond_timedwait(ptr, ptr, ptr)
define internal i1 @tilewright_sleep(ptr %condition, ptr %lock) nounwind {
  %until = alloca [2 x i64], align 8
  %1 = call i32 @clock_gettime(i32 0, ptr %until)
  %now = load i64, ptr %until, align 8
  %later = add i64 %now, IDLE_SECONDS
  store i64 %later, ptr %until, align 8
  %status = call i32 @pthread_cond_timedwait(ptr %condition, ptr %lock, ptr %until)
  %late = icmp ne i32 %status, 0
  ret i1 %late
}
"""
_POSIX_WAIT_WITHOUT_CLOCK = """
declare i32 @pthread_cond_wait(ptr, ptr)
define internal i1 @tilewright_sleep(ptr %condition, ptr %lock) nounwind {
  %1 = call i32 @pthread_cond_wait(ptr %condition, ptr %lock)
  ret i1 false
}
"""
_WINDOWS_SLEEP = """
declare void @AcquireSRWLockExclusive(ptr)
declare void @ReleaseSRWLockExclusive(ptr)
declare i32 @SleepConditionVariableSRW(ptr, ptr, i32, i32)
declare void @WakeAllConditionVariable(ptr)
define internal void @tilewright_create(ptr %lock, ptr %condition) nounwind {
  ret void
}
define internal void @tilewright_lock(ptr %lock) nounwind {
  call void @AcquireSRWLockExclusive(ptr %lock)
  ret void
}
define internal void @tilewright_unlock(ptr %lock) nounwind {
  call void @ReleaseSRWLockExclusive(ptr %lock)
  ret void
}
define internal i1 @tilewright_sleep(ptr %condition, ptr %lock) nounwind {
  %status = call i32 @SleepConditionVariableSRW(ptr %condition, ptr %lock, i32 IDLE_MILLISECONDS, i32 0)
  %late = icmp eq i32 %status, 0
  ret i1 %late
}
define internal void @tilewright_wake(ptr %condition) nounwind {
  call void @WakeAllConditionVariable(ptr %condition)
  ret void
}
"""

_EXPORTS = (
    "parallel_for", "parallel_planes", "run_here", "tilewright_clock", "tilewright_ask", "launch_body", "run_alone",
    "run_tape", "start_inline", "start_openmp", "start_dispatch", "start_team", "join_team", "create_team",
    "dismiss_team",
)  # fmt: skip
_IMPORTS = ("parallel_for", "parallel_planes", "run_here", "tilewright_clock")
_SYSTEM = (
    "clock_gettime", "pthread_mutex_init", "pthread_mutex_lock", "pthread_mutex_unlock", "pthread_cond_init",
    "pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_broadcast", "AcquireSRWLockExclusive",
    "ReleaseSRWLockExclusive", "SleepConditionVariableSRW", "WakeAllConditionVariable",
)  # fmt: skip
_PAUSES = {
    "x86": ("call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    "aarch64": ("call void @llvm.aarch64.hint(i32 1)", "declare void @llvm.aarch64.hint(i32)"),
}
_POINTER, _WORD = ctypes.c_void_p, ctypes.c_int64
_START = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _POINTER, _POINTER, _POINTER, _WORD, _WORD)
_START_INLINE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_char_p)
_START_BY = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, _POINTER, _POINTER, _POINTER, _WORD, _WORD, _POINTER)
_RUN_ALONE = ctypes.CFUNCTYPE(ctypes.c_int32, _POINTER, ctypes.c_char_p, _POINTER, _WORD, ctypes.c_int32, _POINTER)
_JOIN = ctypes.CFUNCTYPE(None, _POINTER, _WORD)
_CREATE = ctypes.CFUNCTYPE(None, _POINTER, _POINTER)
_DISMISS = ctypes.CFUNCTYPE(None, _POINTER)


@dataclass(frozen=True)
class Glue:
    """The compiled functions; ctypes releases the GIL while one runs."""

    library: NativeLibrary
    imports: dict[str, int]  # what a plan's native function calls
    has_clock: bool
    ask: int  # what loops of kernels call whose end nobody knows
    launch_body: int
    run_tape: int
    run_alone: ctypes._FuncPointer
    start_inline: ctypes._FuncPointer
    start_openmp: ctypes._FuncPointer
    start_dispatch: ctypes._FuncPointer
    start_team: ctypes._FuncPointer
    join_team: ctypes._FuncPointer
    create_team: ctypes._FuncPointer
    dismiss_team: ctypes._FuncPointer


def glue_text(triple: str, can_yield: bool, clock_id: int | None, can_ask: bool) -> str:
    """The LLVM text of all functions for a machine.

    `can_yield` says that @tilewright_yield exists, `can_ask` that Python's functions for signals do; `clock_id` is the
    system's number of the monotonic clock, None where there is no ``clock_gettime``: the time is always 0 then.
    """
    architecture = triple.split("-")[0]
    family = "x86" if architecture in ("x86_64", "i386", "i686", "amd64") else architecture.replace("arm64", "aarch64")
    pause, declare_pause = _PAUSES.get(family, ("", ""))
    pieces = {}
    for name, word in _WORDS.items():
        kind = "ptr" if name in ("function", "arguments", "scratch", "body", "context", "raised") else "i64"
        address = f"%{name}.p = getelementptr i64, ptr %team, i64 {word}"
        pieces[f"{name}_p"] = address
        pieces[f"{name}_l"] = f"{address}\n  %{name} = load atomic {kind}, ptr %{name}.p monotonic, align 8"
        pieces[f"{name}_s"] = f"{address}\n  store atomic {kind} %{name}, ptr %{name}.p monotonic, align 8"
    return _GLUE_TEXT.format(
        pause=pause,
        declare_pause=declare_pause,
        give="call void @tilewright_yield()" if can_yield else "",
        declare_yield="declare void @tilewright_yield()" if can_yield else "",
        sleep=_sleep_text("windows" in triple, clock_id is not None),
        clock=_NO_CLOCK if clock_id is None else _CLOCK.format(clock_id=clock_id),
        ticks=_CYCLES + _TICKS.format(source="llvm.readcyclecounter")
        if family == "x86"
        else _TICKS.format(source="tilewright_clock"),
        signals=signals.text(can_ask, _ASK_TICKS),
        walks=planes.PLANES_TEXT.format(**pieces),
        tape=tape.TAPE_TEXT.replace("STOPPED", str(_WORDS["stopped"])),
        ask_ticks=_ASK_TICKS,
        short_ticks=_SHORT_TICKS,
        long_ticks=_LONG_TICKS,
        patience=_PATIENCE,
        yield_mask=_YIELD_EVERY - 1,
        linger=_LINGER,
        team_bytes=TEAM_BYTES,
        **pieces,
    )


def _sleep_text(windows: bool, has_clock: bool) -> str:
    text = _WINDOWS_SLEEP if windows else _POSIX_SLEEP + (_POSIX_WAIT if has_clock else _POSIX_WAIT_WITHOUT_CLOCK)
    return text.replace("IDLE_SECONDS", str(IDLE_SECONDS)).replace("IDLE_MILLISECONDS", str(1000 * IDLE_SECONDS))


_glue_lock = threading.Lock()
_glue: Glue | None = None


def glue() -> Glue:
    """The functions, loaded once a process; compiled where no process before has kept them.

    Once, whatever the number of threads that ask first: threads of a team live in these functions, and a second copy
    would be unloaded under those that have its address.
    """
    global _glue
    if _glue is None:
        with _glue_lock:
            if _glue is None:  # nobody was faster
                _glue = _load_glue()
    return _glue


def _after_fork() -> None:
    global _glue_lock
    _glue_lock = threading.Lock()  # a thread that did not come along may have held it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _load_glue() -> Glue:
    found = {name: system_address(name) for name in _SYSTEM}
    found["tilewright_yield"] = system_address("sched_yield") or system_address("SwitchToThread")
    clock_id = getattr(time, "CLOCK_MONOTONIC", None) if found["clock_gettime"] else None
    asking = signals.functions()
    found |= asking
    can_yield = found["tilewright_yield"] is not None
    image = cached_object(glue_text(llvm.get_process_triple(), can_yield, clock_id, bool(asking)), "glue")
    imports = {name: address for name, address in found.items() if address is not None}
    library = load_objects([image], _EXPORTS, imports)
    kinds = {
        "start_inline": _START_INLINE,
        "start_team": _START,
        "start_openmp": _START_BY,
        "start_dispatch": _START_BY,
    }
    start = {name: kind(library.address(name)) for name, kind in kinds.items()}
    return Glue(
        library=library,
        imports={name: library.address(name) for name in _IMPORTS},
        has_clock=clock_id is not None,
        ask=library.address("tilewright_ask"),
        launch_body=library.address("launch_body"),
        run_tape=library.address("run_tape"),
        run_alone=_RUN_ALONE(library.address("run_alone")),
        join_team=_JOIN(library.address("join_team")),
        create_team=_CREATE(library.address("create_team")),
        dismiss_team=_DISMISS(library.address("dismiss_team")),
        **start,
    )
