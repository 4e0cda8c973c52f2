"""Grids whose planes follow from each other, shared by the threads of a team: functions of `runtime.glue`.

The instances of one z are a plane; a plane begins when the one before it has ended, as the steps of a recurrent layer
do.  Such a grid is one job of a team, of as many instances as there are shares of a plane, and each of them walks all
planes: it takes its own share of one, so that what a thread reads stays in its caches from plane to plane, then those
that nobody has claimed, and waits until all have ended.  What it waits for is being run: a thread that comes late, or
not at all, has claimed nothing.

    claimed   in its high half a plane, in its low half a bit for each of its shares
    ended     shares that have ended, of all planes
"""

from __future__ import annotations

MOST_SHARES = 32  # of a plane: the bits of half a word

# Formatted with the pieces of `glue.glue_text`.
PLANES_TEXT = """
; Runs `planes` times `plane` instances, each plane when the one before it has ended.
define void @parallel_planes(ptr %team, ptr %function, ptr %arguments, i64 %plane, i64 %planes) nounwind {{
entry:
  %all = mul i64 %plane, %planes
  %any = icmp sgt i64 %all, 0
  br i1 %any, label %ask, label %out
ask:
  {workers_l}
  %useful = call i64 @llvm.umin.i64(i64 %plane, i64 MOST_SHARES)
  %shares = call i64 @llvm.umin.i64(i64 %useful, i64 %workers)
  %alone = icmp eq i64 %shares, 1
  br i1 %alone, label %here, label %publish
here:
  call void @run_here(ptr %team, ptr %function, ptr %arguments, i64 %all)
  br label %out
publish:
  {plane_s}
  {claimed_p}
  {ended_p}
  store atomic i64 0, ptr %claimed.p monotonic, align 8
  store atomic i64 0, ptr %ended.p monotonic, align 8
  call void @share(ptr %team, ptr %function, ptr %arguments, i64 %shares, i64 %planes)
  br label %out
out:
  ret void
}}

; Claims a share of a plane: false when somebody else has, or when the plane is over.
define internal i1 @claim(ptr %team, i64 %plane, i64 %share) nounwind {{
entry:
  {claimed_p}
  %bit = shl i64 1, %share
  br label %try
try:
  %claimed = load atomic i64, ptr %claimed.p acquire, align 8
  %current = lshr i64 %claimed, 32
  %behind = icmp ult i64 %current, %plane  ; nothing of this plane was claimed
  %fresh = shl i64 %plane, 32
  %base = select i1 %behind, i64 %fresh, i64 %claimed
  %over = icmp ugt i64 %current, %plane
  %mine = and i64 %base, %bit
  %had = icmp ne i64 %mine, 0
  %lost = or i1 %over, %had
  br i1 %lost, label %out, label %swap
swap:
  %new = or i64 %base, %bit
  %pair = cmpxchg ptr %claimed.p, i64 %claimed, i64 %new acq_rel monotonic, align 8
  %done = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %done, label %out, label %try
out:
  %won = phi i1 [ false, %try ], [ true, %swap ]
  ret i1 %won
}}

; Takes shares of each plane, beginning with its own, until all planes have ended.
define internal void @walk(ptr %team, i64 %index, ptr %function, ptr %arguments, ptr %scratch, i64 %own,
                           i64 %shares) nounwind {{
entry:
  {planes_l}
  {plane_l}
  {claimed_l}
  {ended_p}
  {stopped_p}
  %leads = icmp eq i64 %index, 0
  %first = lshr i64 %claimed, 32
  br label %next
next:
  %number = phi i64 [ %first, %entry ], [ %following, %over ]
  %wanted.before = mul i64 %number, %shares
  %wanted = add i64 %wanted.before, %shares
  %offset = mul i64 %number, %plane
  br label %look
look:
  %turn = phi i64 [ 0, %next ], [ %turn.next, %looked ]
  %sum = add i64 %own, %turn
  %share = urem i64 %sum, %shares
  %won = call i1 @claim(ptr %team, i64 %number, i64 %share)
  br i1 %won, label %run, label %looked
run:
  %before.low = mul i64 %share, %plane
  %low = udiv i64 %before.low, %shares
  %before.high = add i64 %before.low, %plane
  %high = udiv i64 %before.high, %shares
  %begin = add i64 %offset, %low
  %end = add i64 %offset, %high
  call void @run_part(ptr %team, i64 %index, ptr %function, ptr %arguments, ptr %scratch, i64 %begin, i64 %end)
  %others = atomicrmw add ptr %ended.p, i64 1 acq_rel, align 8
  br label %looked
looked:
  %turn.next = add i64 %turn, 1
  %again = icmp ult i64 %turn.next, %shares
  br i1 %again, label %look, label %check
check:
  %spins = phi i64 [ 0, %looked ], [ %spins.next, %waited ]
  %ended = load atomic i64, ptr %ended.p acquire, align 8
  %complete = icmp uge i64 %ended, %wanted
  br i1 %complete, label %over, label %idle
idle:
  call void @wait(i64 %spins)
  %spins.next = add i64 %spins, 1
  br i1 %leads, label %asks, label %waited
asks:
  %now = call i64 @ticks()
  call void @ask(ptr %team, i64 %now)
  br label %waited
waited:
  br label %check
over:
  %following = add i64 %number, 1
  %stopped = load atomic i64, ptr %stopped.p monotonic, align 8
  %goes = icmp eq i64 %stopped, 0
  %more = icmp ult i64 %following, %planes
  %on = and i1 %goes, %more
  br i1 %on, label %next, label %out
out:
  ret void
}}

declare i64 @llvm.umin.i64(i64, i64)
""".replace("MOST_SHARES", str(MOST_SHARES))
