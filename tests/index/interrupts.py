"""Exceptions at every instant at which the interpreter runs signal handlers: at the start of functions and after calls.

Every function of the library through which a file is reached is interrupted. These functions are found by watching, so
that no name of one has to be known here.
"""

import dis
import os
import sys
import threading
from pathlib import Path

import autojacobin
from tests.index.faults import Interrupt

PACKAGE = str(Path(autojacobin.__file__).parent)
SYSTEM = {os.open.__module__, "fcntl"}  # modules of functions that call the system


def on_the_way_to_a_file(work):
    """Do some work, and give the functions of the library that were running when it called the system."""
    found = set()

    def look(frame, event, function):
        if event == "c_call" and function.__module__ in SYSTEM:
            while frame is not None:
                if frame.f_code.co_filename.startswith(PACKAGE):
                    found.add(frame.f_code)
                frame = frame.f_back

    sys.setprofile(look)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


class InterruptAtCall:
    """Raises an exception at the ``at``-th instant of a block, in some functions; counts the instants if ``at`` is 0.

    Up to Python 3.11, a tracer sees each instruction. Later versions have ``sys.monitoring`` for that.
    """

    def __init__(self, functions, at=0):
        self.functions, self.at, self.count = functions, at, 0
        self.opcodes = {code: code.co_code for code in functions}
        self.last = {}  # the last instruction of each frame
        self.thread = threading.get_ident()  # signal handlers run in one thread

    def __enter__(self):
        if sys.version_info < (3, 12):
            sys.settrace(self._traced)
            return self
        tool, events = sys.monitoring.PROFILER_ID, sys.monitoring.events
        sys.monitoring.use_tool_id(tool, "interrupts")
        sys.monitoring.register_callback(tool, events.PY_START, self._started)
        sys.monitoring.register_callback(tool, events.INSTRUCTION, self._at_instruction)
        for code in self.functions:
            sys.monitoring.set_local_events(tool, code, events.PY_START | events.INSTRUCTION)
        return self

    def __exit__(self, *exception):
        if sys.version_info < (3, 12):
            sys.settrace(None)
            return
        tool, events = sys.monitoring.PROFILER_ID, sys.monitoring.events
        for code in self.functions:
            sys.monitoring.set_local_events(tool, code, events.NO_EVENTS)
        for event in (events.PY_START, events.INSTRUCTION):
            sys.monitoring.register_callback(tool, event, None)
        sys.monitoring.free_tool_id(tool)

    def _traced(self, frame, event, argument):
        if frame.f_code not in self.functions:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        self._start(frame)
        return self._inside

    def _inside(self, frame, event, argument):
        if event == "opcode":
            self._instruction(frame, frame.f_lasti)
        return self._inside

    def _started(self, code, offset):
        if threading.get_ident() == self.thread:
            self._start(sys._getframe(1))

    def _at_instruction(self, code, offset):
        if threading.get_ident() == self.thread:
            self._instruction(sys._getframe(1), offset)

    def _start(self, frame):
        self.last.pop(id(frame), None)  # that of an earlier frame at the same address
        self._step()

    def _instruction(self, frame, offset):
        before = self.last.get(id(frame))
        self.last[id(frame)] = offset
        if before is not None and dis.opname[self.opcodes[frame.f_code][before]].startswith("CALL"):
            self._step()

    def _step(self):
        self.count += 1
        if self.count == self.at:
            raise Interrupt
