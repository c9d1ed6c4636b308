// Gives a history of a storm to Porcupine: is every lock and every guarded register linearizable?
//
//	go run . HISTORY
//
// The models are those of ../linearizable.py.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strconv"
	"strings"

	"github.com/anishathalye/porcupine"
)

type event struct {
	At         int64           `json:"at"`
	Client     int             `json:"client"`
	What       string          `json:"what"`
	Op         int64           `json:"op"`
	Lock       string          `json:"lock"`
	How        json.RawMessage `json:"how"`
	Token      uint64          `json:"token"`
	ValidUntil int64           `json:"valid_until"`
	Register   string          `json:"register"`
	Write      *uint64         `json:"write"`
	Value      uint64          `json:"value"`
	Highest    uint64          `json:"highest"`
}

// One operation on a lock: a guard is handed out (take), or stops being valid (not take).
type input struct {
	take, holds   bool
	id            int
	permits, of   int // of a semaphore
	shared        bool
	token         uint64
	register      bool
	write         *uint64
	done, stale   bool
	value         uint64
	client        int
	call, back    int64
	name          string
	until         int64
	granted       bool
}

// Who holds ("ID:WEIGHT," each; a reader weighs -1, a writer 0), and the greatest tokens.
type state struct {
	holders           string
	exclusive, shared uint64
}

type register struct{ highest, value uint64 }

func weight(in *input) int {
	switch {
	case in.of > 0:
		return in.permits
	case in.shared:
		return -1
	}
	return 0
}

func step(before, question, _ interface{}) (bool, interface{}) {
	in := question.(*input)
	if in.register {
		return access(before.(register), in)
	}
	s := before.(state)
	mine := fmt.Sprintf("%d:%d,", in.id, weight(in))
	if !in.take {
		return strings.Contains(","+s.holders, ","+mine),
			state{strings.TrimPrefix(strings.Replace(","+s.holders, ","+mine, ",", 1), ","), s.exclusive, s.shared}
	}
	free, sum := true, 0
	for _, holder := range strings.Split(strings.TrimSuffix(s.holders, ","), ",") {
		if holder == "" {
			continue
		}
		w, _ := strconv.Atoi(holder[strings.Index(holder, ":")+1:])
		sum += w
		free = free && (in.of > 0 || in.shared && w < 0)
	}
	known := uint64(0)
	switch {
	case in.of > 0:
		free = sum+in.permits <= in.of
	case in.shared:
		known = s.exclusive
	default:
		known = s.exclusive
		if s.shared > known {
			known = s.shared
		}
	}
	if in.holds && !free || in.token <= known {
		return false, before
	}
	switch {
	case in.of > 0:
	case !in.shared:
		s.exclusive = in.token
	case in.token > s.shared:
		s.shared = in.token
	}
	if in.holds {
		s.holders += mine
	}
	return true, s
}

func access(s register, in *input) (bool, interface{}) {
	unknown := !in.done && !in.stale
	if in.token < s.highest {
		return unknown || in.stale && in.value == s.highest, s
	}
	s.highest = in.token
	if in.write != nil {
		s.value = *in.write
	}
	return unknown || in.done && in.value == s.value, s
}

func read(path string) ([]event, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	lines := bufio.NewReader(file)
	decoder := json.NewDecoder(lines)
	var head struct {
		Version int `json:"lockkit_history"`
		Events  int `json:"events"`
	}
	if err := decoder.Decode(&head); err != nil || head.Version != 1 {
		return nil, fmt.Errorf("no history of version 1: %v", err)
	}
	events := make([]event, head.Events)
	for i := range events {
		if err := decoder.Decode(&events[i]); err != nil {
			return nil, err
		}
	}
	sort.SliceStable(events, func(i, j int) bool { return events[i].At < events[j].At })
	return events, nil
}

func operations(events []event) map[string][]*input {
	type key struct {
		client int
		op     int64
	}
	open, all := map[key]*input{}, map[string][]*input{}
	for _, e := range events {
		at := key{e.Client, e.Op}
		in := open[at]
		switch e.What {
		case "asked":
			in = &input{take: true, id: len(open), client: e.Client, call: e.At, name: "lock " + e.Lock}
			var permits struct{ Permits [2]int }
			if json.Unmarshal(e.How, &permits) == nil {
				in.permits, in.of = permits.Permits[0], permits.Permits[1]
			}
			in.shared = string(e.How) == `"shared"`
			open[at] = in
		case "granted":
			if !in.granted {
				in.granted, in.back, in.token, in.until = true, e.At, e.Token, e.ValidUntil
				all[in.name] = append(all[in.name], in)
			}
		case "valid":
			if e.ValidUntil > in.until {
				in.until = e.ValidUntil
			}
		case "ended":
			if e.At < in.until {
				in.until = e.At
			}
		case "client_crashed":
			for at, in := range open {
				if at.client == e.Client && e.At < in.until {
					in.until = e.At
				}
			}
		case "register_asked":
			in = &input{register: true, client: e.Client, call: e.At, back: math.MaxInt64,
				token: e.Token, write: e.Write}
			open[at] = in
			all["register "+e.Register] = append(all["register "+e.Register], in)
		case "register_done", "register_stale":
			in.back, in.done, in.stale = e.At, e.What == "register_done", e.What == "register_stale"
			in.value = e.Value
			if in.stale {
				in.value = e.Highest
			}
		}
	}
	for name, ops := range all {
		for _, in := range ops {
			if in.take {
				in.holds = in.back < in.until
			}
			if in.holds {
				give := *in
				give.take, give.call, give.back = false, in.until, math.MaxInt64
				all[name] = append(all[name], &give)
			}
		}
	}
	return all
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: porcupine HISTORY")
		os.Exit(2)
	}
	events, err := read(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	all := operations(events)
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	sort.Strings(names)
	code := 0
	for _, name := range names {
		first := interface{}(state{})
		if strings.HasPrefix(name, "register ") {
			first = register{}
		}
		model := porcupine.Model{Init: func() interface{} { return first }, Step: step}
		ops := make([]porcupine.Operation, 0, len(all[name]))
		for _, in := range all[name] {
			ops = append(ops, porcupine.Operation{ClientId: in.client, Input: in, Call: in.call, Return: in.back})
		}
		verdict := "linearizable"
		if !porcupine.CheckOperations(model, ops) {
			verdict, code = "ILLEGAL", 1
		}
		fmt.Printf("%s: %d operations, %s\n", name, len(ops), verdict)
	}
	os.Exit(code)
}
